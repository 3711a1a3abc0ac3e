"""Load any checkpoint, from the hub or a folder, and search a few texts with it.

python experiments/examples/search_with_a_checkpoint.py lightonai/GTE-ModernColBERT-v1 "how do magnets work?"
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the slow imports
    sys.exit(print(__doc__))

import paradigms
from paradigms.retrieve import Indexed

TEXTS = {
    "iron": "A magnet attracts iron because its field aligns the small magnets that the atoms of iron are.",
    "bread": "Bread rises because yeast turns sugar into carbon dioxide, which the dough holds.",
    "tides": "The moon's gravity raises the sea on both sides of the earth, twice a day.",
}


def main(checkpoint: str, query: str = "why does iron stick to a magnet?") -> dict[str, float]:
    model = paradigms.load(checkpoint)
    scores = Indexed.build(model, TEXTS).search({"query": query}, k=3)["query"]
    for id, score in scores.items():
        print(f"{score:.3f}  {id}: {TEXTS[id]}")
    return scores


if __name__ == "__main__":
    main(*sys.argv[1:])
