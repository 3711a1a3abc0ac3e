"""python -m tests.attack [--tries N] [--seed S] [--only WORD]: the table of all attacks."""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch

from tests.attack.attacks import ATTACKS
from tests.attack.harness import OUTCOMES, tally

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.attack", description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="of all attacks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    settings = parser.parse_args()
    torch.set_num_threads(1)  # a fork of a process whose OpenMP threads have run hangs
    chosen = {name: attack for name, attack in ATTACKS.items() if settings.only in name}
    each, bad = max(1, settings.tries // len(chosen)), 0
    print("| attack | tries |", " | ".join(OUTCOMES), "| seconds |\n|---|" + "---:|" * (2 + len(OUTCOMES)))
    for name, attack in chosen.items():
        began = time.perf_counter()
        found = tally(attack, each, settings.seed, forked=True)
        bad += each - found["refused"] - found["harmless"]
        cells = " | ".join(str(found[outcome]) for outcome in OUTCOMES)
        print(f"| {name} | {each} | {cells} | {time.perf_counter() - began:.0f} |", flush=True)
    sys.exit(bad > 0)
