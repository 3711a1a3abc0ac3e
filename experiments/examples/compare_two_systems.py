"""Is one system better than another? BM25 against an encoder as it is, with intervals and a test.

python experiments/examples/compare_two_systems.py
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the imports that take seconds
    sys.exit(print(__doc__))

import tempfile

from rich import print as show

from paradigms import PARADIGMS
from paradigms.baselines.bm25 import BM25
from paradigms.data import load
from paradigms.evaluate import on_split, result_table, rich_table
from paradigms.index import ExactIndex


def main(backbone: str = "offline", documents: int = 400) -> None:
    collection = load("pydocs", documents=int(documents))
    corpus, test = collection.corpus, collection.split("test")
    runs = {"bm25": BM25.build(corpus, corpus.ids).search(test.queries, 100)}
    model = PARADIGMS["dpr"](backbone, pooling="mean", query_length=48, document_length=128)
    with tempfile.TemporaryDirectory() as folder:
        index = ExactIndex.build(model, corpus.ids, corpus, f"{folder}/index", progress=True)
        runs["dpr"] = index.search(model, test.queries, 100, progress=True)
    measured = {name: on_split(run, test) for name, run in runs.items()}
    show(rich_table(result_table(f"{collection.name}, {documents} documents", measured, baseline="bm25")))


if __name__ == "__main__":
    main(*sys.argv[1:])
