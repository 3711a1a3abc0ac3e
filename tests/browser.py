"""A real browser for tests: Chromium, spoken to over a pipe in its DevTools protocol, with real input."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needed = pytest.mark.skipif(BROWSER is None, reason=f"needs a browser, one of {', '.join(NAMES)}")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe")
PATIENCE = 60.0  # seconds until what is waited for counts as missing
KEYS = {"Enter": "\r", "Tab": "\t", " ": " "}
CODES = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "End": 35, "Home": 36}
CODES |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Backspace": 8}
LOCATE = """(selector => {
  const target = document.querySelector(selector);
  target.scrollIntoView({block: "center", behavior: "instant"});
  const box = target.getClientRects()[0];
  return [box.x + box.width / 2, box.y + Math.min(box.height / 2, 12)];
})"""
# Counts the answers that a page waits for: what arrives moves what is below it.
COUNT = """{
  const plain = window.fetch;
  window.waitingFor = 0;
  window.fetch = async (...request) => {
    window.waitingFor++;
    try {
      return await plain(...request);
    } finally {
      window.waitingFor--;
    }
  };
}"""
# The page's own timers, at most 120 ms, end first: what they draw moves what is below it.
DRAWN = """new Promise((done) =>
  setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 150)
)"""


class Page:
    """One tab. Input goes through the browser like a person's; `errors` lists what scripts raised."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="browser-")
        ours, theirs = os.pipe(), os.pipe()  # the browser reads from its 3 and writes to its 4

        def connect() -> None:
            reading, writing = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        command = [str(BROWSER), *FLAGS, f"--user-data-dir={self.folder}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._write, self._read = ours[1], theirs[0]
        self._buffer, self._last, self._session = b"", 0, None
        self.errors: list[str] = []
        self.downloads = Path(self.folder) / "downloads"
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", source=COUNT)
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))
        self.resize(1280, 900)

    def close(self) -> None:
        try:
            self._session = None
            self.call("Browser.close")
        finally:
            for end in (self._write, self._read):
                os.close(end)
            self._process.wait(PATIENCE)
            shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session and not method.startswith(("Browser.", "Target.")):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, address: str) -> None:
        """Show an address, and wait until it is loaded."""
        self.errors.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def script(self, expression: str) -> Any:
        """The value of an expression in JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """The value of an expression once it is true."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            value = self.script(condition)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {condition}\n{self.errors}")

    def text(self, selector: str) -> str:
        shown: str = self.script(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")
        return shown

    def texts(self, selector: str) -> list[str]:
        shown: list[str] = self.script(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"
        )
        return shown

    def count(self, selector: str) -> int:
        return len(self.texts(selector))

    def point(self, selector: str) -> list[float]:
        """Move the pointer over an element."""
        x, y = self.script(f"{LOCATE}({json.dumps(selector)})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return [x, y]

    def click(self, selector: str) -> None:
        """Click on an element that has stopped moving: no answer is waited for, and all are drawn."""
        while self.wait("window.waitingFor === 0") and self.script(f"{DRAWN}.then(() => window.waitingFor)"):
            pass
        x, y = self.point(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        code = CODES.get(key, ord(key[0].upper()))
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": KEYS[key]} if key in KEYS else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field, as by hand."""
        self.click(selector)
        while not self.script(f"document.activeElement.matches({json.dumps(selector)})"):
            self.click(selector)  # it had moved before the click
        self.script("document.activeElement.select()")
        self.type(text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option with the keyboard: its first letters."""
        self.script(f"document.querySelector({json.dumps(selector)}).focus()")
        options = f"[...document.querySelector({json.dumps(selector)}).options].map((one) => one.value)"
        at = self.script(options).index(value)
        self.press("Home")
        for _ in range(at):
            self.press("ArrowDown")
        assert self.script(f"document.querySelector({json.dumps(selector)}).value") == value

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        poller = select.poll()  # select.select refuses descriptors above 1,023
        poller.register(self._read, select.POLLIN)
        while b"\0" not in self._buffer:
            ready = poller.poll(1000 * max(0.0, until - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._buffer += part
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(message["params"]["entry"]["text"])
        return message


def until(condition: Any, missing: str) -> None:
    """Wait for a condition outside the page. missing: what is wrong if it never holds."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, missing
        time.sleep(0.02)
