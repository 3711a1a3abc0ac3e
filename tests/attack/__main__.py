"""python -m tests.attack [--tries N] [--seed S] [--only WORD]: the table of all attacks."""

import argparse
import gc
import math
import os
import sys
import time

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
os.environ["ATTACK_FULL"] = "1"

import torch

from tests.attack.clients import CLIENTS
from tests.attack.harness import OUTCOMES, tally
from tests.attack.indexes import INDEXES
from tests.attack.strangers import STRANGERS

if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.attack", description=__doc__)
    parser.add_argument("--tries", type=int, default=10_000, help="of all attacks together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    settings = parser.parse_args()
    gc.freeze()  # or each fork copies what it collects
    torch.set_num_threads(1)  # a fork of a process whose OpenMP threads have run hangs
    attacks = STRANGERS | INDEXES | CLIENTS
    attacks = {name: attack for name, attack in attacks.items() if settings.only in name}
    each, bad = settings.tries / sum(1 / attack.cost for attack in attacks.values()), 0
    print("| attack | tries |", " | ".join(OUTCOMES), "| seconds |\n|---|" + "---:|" * (2 + len(OUTCOMES)))
    for name, attack in attacks.items():
        tries = math.ceil(each / attack.cost)
        began = time.perf_counter()
        outcomes = tally(attack, tries, settings.seed, forked=True)
        bad += tries - outcomes["refused"] - outcomes["harmless"]
        cells = " | ".join(str(outcomes[outcome]) for outcome in OUTCOMES)
        print(f"| {name} | {tries} | {cells} | {time.perf_counter() - began:.0f} |", flush=True)
    gc.unfreeze()  # otherwise, objects alive at the end are reported as leaks
    sys.exit(bad > 0)
