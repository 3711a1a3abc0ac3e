"""Train ColBERT on your own pairs, JSON lines {"query", "document"}, and search the documents with it.

python experiments/examples/train_on_own_pairs.py pairs.jsonl
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the imports that take seconds
    sys.exit(print(__doc__))

import json
from pathlib import Path

from paradigms import PARADIGMS
from paradigms.data import Corpus, Split
from paradigms.io.gzipped import numbered_lines
from paradigms.retrieve import Indexed
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import build_examples
from paradigms.train.loop import TrainingSettings, train


def main(pairs: str, backbone: str = "offline", output: str = "results/own-pairs", steps: int = 30) -> None:
    rows = [json.loads(line) for _, line in numbered_lines(pairs)]
    texts = dict.fromkeys(row["document"] for row in rows)  # each once, in their order
    ids = {text: f"d{n}" for n, text in enumerate(texts)}
    corpus = Corpus(list(ids.values()), list(ids))
    judged = {f"q{n}": {ids[row["document"]]: 1} for n, row in enumerate(rows)}
    queries = Split({f"q{n}": row["query"] for n, row in enumerate(rows)}, judged)

    model = PARADIGMS["colbert"](backbone, dim=128)
    objective = Contrastive(model, corpus, build_examples(corpus, queries))
    settings = TrainingSettings(steps=int(steps), batch_size=min(16, len(rows)), learning_rate=3e-5)
    train(model, objective, settings, Path(output) / "training").save_pretrained(f"{output}/checkpoint")

    index = Indexed.build(model, corpus, f"{output}/index")
    for id, scores in index.search(dict(list(queries.queries.items())[:3]), k=3).items():
        print(
            queries.queries[id],
            *(f"\n  {score:.3f}  {corpus[corpus.position(d)][:80]}" for d, score in scores.items()),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
