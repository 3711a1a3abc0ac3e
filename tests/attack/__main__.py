"""python -m tests.attack [--tries N] [--seed S] [--only WORD]: the table of all attacks."""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
os.environ["ATTACK_FULL"] = "1"
sys.path.append(str(Path(__file__).parents[2] / "experiments"))  # as a launched script has it

import torch

from tests.attack.attacks import ATTACKS
from tests.attack.clients import CLIENTS
from tests.attack.harness import OUTCOMES, tally
from tests.attack.strangers import STRANGERS
from tests.attack.writers import WRITERS

GUIDED = 4  # tries that a fuzzer draws for each of the others

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.attack", description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="of all attacks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    settings = parser.parse_args()
    gc.freeze()  # or each fork copies what it collects
    torch.set_num_threads(1)  # a fork of a process whose OpenMP threads have run hangs
    every = ATTACKS | STRANGERS | CLIENTS | WRITERS
    rows = [(name, attack, False) for name, attack in every.items()]
    if find_spec("atheris"):
        rows += [(f"{name}, guided", attack, True) for name, attack in every.items() if attack.reads]
    rows = [row for row in rows if settings.only in row[0]]
    each, bad = settings.tries / sum(GUIDED if guided else 1 / of.cost for _, of, guided in rows), 0
    print("| attack | tries |", " | ".join(OUTCOMES), "| seconds |\n|---|" + "---:|" * (2 + len(OUTCOMES)))
    for name, attack, guided in rows:
        tries = math.ceil(each * (GUIDED if guided else 1 / attack.cost))
        began = time.perf_counter()
        found = tally(attack, tries, settings.seed, forked=True, guided=guided)
        bad += tries - found["refused"] - found["harmless"]
        cells = " | ".join(str(found[outcome]) for outcome in OUTCOMES)
        print(f"| {name} | {tries} | {cells} | {time.perf_counter() - began:.0f} |", flush=True)
    gc.unfreeze()  # or what is left at the end is told as leaked
    sys.exit(bad > 0)
