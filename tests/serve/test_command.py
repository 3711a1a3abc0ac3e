"""`paradigms serve` as a process: what it serves, how it ends, and which arguments it refuses."""

import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from paradigms import PARADIGMS
from paradigms.cli.arguments import main
from tests.serve.served import needed
from tests.serve.test_service import answer_to
from tests.tiny import write_collection

pytestmark = needed
TEXTS = ["the fish in the sea", "fire and warm wood", "cold snow on ice"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_bert):
    """A collection, a saved model, and an index of the one by the other."""
    root = tmp_path_factory.mktemp("served")
    write_collection(root, TEXTS, ["fish sea", "warm fire", "snow"], {"test": range(3)})
    torch.manual_seed(0)
    model = PARADIGMS["colbert"](tiny_bert, dim=8, query_length=12, document_length=24)
    model.save_pretrained(root / "model")
    command = ["index", root, "--model", root / "model", "--output", root / "small.index"]
    main([*map(str, command), "--precision", "no"])
    return root


def started(folders, *arguments):
    """A running service, and its port."""
    command = [sys.executable, "-m", "paradigms", "serve", str(folders / "small.index"), "--port", "0"]
    process = subprocess.Popen([*command, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if match := re.search(r"Open http://127\.0\.0\.1:(\d+)/", line):
            return process, int(match[1])
    raise AssertionError("".join(lines))


def test_the_command_serves_on_a_free_port_and_ends_cleanly(folders):
    arguments = ["--bm25", "--model", folders / "model", "--fuse", "--split", "test"]
    process, port = started(folders, *arguments)
    answer = answer_to(port, "/systems")
    assert [system["name"] for system in answer["systems"]] == ["small.index", "bm25", "model", "fused"]
    assert (answer["documents"], answer["queries"]) == (3, 3)
    with pytest.raises(SystemExit, match="ddress already in use"):
        main(["serve", str(folders / "small.index"), "--port", str(port)])
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()


def test_what_cannot_be_served_is_refused(folders):
    for option, value, message in (
        ("--host", "0.0.0.0", "set --token"),
        ("--split", "none", "none"),
        ("--model", "nowhere", "nowhere"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["serve", str(folders / "small.index"), "--port", "0", option, value])
