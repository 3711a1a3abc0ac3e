"""python -m tests.serve.latency: time until all of eight systems have drawn a change on the live page.

100 documents of 512 tokens, encoders untrained (times do not depend on training), in a real browser with real
input. Prints medians: ms from the input to the drawn page, and CPU ms of the service and the page.
"""

import statistics
import time
from functools import partial
from typing import Any

import torch

from paradigms import PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, load_collection
from paradigms.retrieve import Fused, Indexed, Retriever
from tests import browser
from tests.serve.served import serving

REPEATS = 5
TOKENS = 512
WORDS = 400  # of a document, about 512 tokens
# Notes when a change begins, and when the frame after the last of its answers is drawn.
WATCH = """{
  const plain = window.fetch;
  window.drawn = 0;
  const begin = (event) => event.isTrusted && Object.assign(window, { began: performance.now(), drawn: 0 });
  for (const kind of ["input", "change"]) addEventListener(kind, begin, true);
  window.fetch = async (...request) => {
    const answer = await plain(...request);
    if (--window.left === 0) {
      const note = () => requestAnimationFrame(() => setTimeout(() => (window.drawn = performance.now())));
      setTimeout(note, 60); // the page draws answers up to 50 ms later
    }
    return answer;
  };
}"""


def systems(corpus: Corpus) -> dict[str, Retriever]:
    made: dict[str, Retriever] = {"bm25": BM25(corpus)}
    for name in ("dpr", "me_bert", "colbert", "coil", "aligner", "xtr"):
        torch.manual_seed(0)
        made[name] = Indexed.build(PARADIGMS[name]("offline", document_length=TOKENS), corpus)
    return made | {"fused": Fused([made["bm25"], made["dpr"]])}


def change(tab: browser.Page, answers: int, act: Any) -> tuple[float, float, float]:
    """Milliseconds of one change: until it is drawn, of the service's CPU, and of the page's thread."""

    def of_page() -> float:
        metrics = tab.call("Performance.getMetrics")["metrics"]
        seconds: float = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
        return seconds

    tab.wait("window.waitingFor === 0")
    tab.script(f"window.left = {answers}")
    service, page = time.process_time(), of_page()
    act()
    drawn = tab.wait("window.drawn && window.drawn - window.began")
    return drawn, 1000 * (time.process_time() - service), 1000 * (of_page() - page)


def main() -> None:
    texts = load_collection("pydocs", documents=1600).corpus
    starts = range(0, len(texts), 16)
    words = [" ".join(texts[n] for n in range(start, start + 16)).split() for start in starts]
    joined = [" ".join(some[:WORDS]) for some in words]
    corpus = Corpus([f"document {n}" for n in range(len(joined))], joined)
    retrievers = systems(corpus)
    tab = browser.Page()
    try:
        with serving(retrievers, corpus, None) as port:
            tab.call("Performance.enable", timeDomain="threadTicks")
            tab.open(f"http://127.0.0.1:{port}/")
            tab.wait(f"document.querySelectorAll('#shown input').length === {len(retrievers)}")
            tab.fill("#query", "solve a system of linear equations")
            tab.wait(f"document.querySelectorAll('.column:has(.entry)').length === {len(retrievers)}")
            tab.click(".column:nth-child(4) .entry")
            tab.wait(f"document.querySelectorAll('#systems .card').length === {len(retrievers) + 1}")
            tab.choose("#align", "TopK")
            tab.wait("document.querySelectorAll('#knobs input').length && window.waitingFor === 0")
            tab.script(WATCH)
            turn = "ArrowDown", "ArrowUp"
            both = 2 * len(retrievers)  # a ranking and a card of each system
            changes = {
                "k of A": ("#knobs input[name=k]", both, lambda n: tab.press(turn[n % 2])),
                "Z": ("#normalise", both, lambda n: tab.press(turn[n % 2])),
                "salience": ("#salience", both, lambda n: tab.press(" ")),
                "a word of the document": ("#text", len(retrievers), lambda n: tab.type(f"word {n} ")),
            }
            print("| change | ms | CPU ms, service | CPU ms, page |\n|---|---:|---:|---:|")
            for name, (control, answers, act) in changes.items():
                tab.click("h2")
                tab.script(f"document.querySelector('{control}').focus()")
                if control == "#text":  # or the word is cut off
                    tab.script("document.activeElement.setSelectionRange(0, 0)")
                taken = [change(tab, answers, partial(act, n)) for n in range(REPEATS + 1)][1:]
                medians = (statistics.median(column) for column in zip(*taken, strict=True))
                print(f"| {name} | " + " | ".join(f"{value:.0f}" for value in medians) + " |", flush=True)
    finally:
        tab.close()


if __name__ == "__main__":
    main()
