"""Train ColBERT on your own pairs or triplets, and search the documents with the trained model.

python experiments/examples/train_on_own_pairs.py rows.jsonl

Each line is {"query", "document"}, and may have "negatives", a list of texts. A CSV file with these columns
or, in Python, a Hugging Face `Dataset` can replace the file.
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the slow imports
    sys.exit(print(__doc__))

from pathlib import Path

from paradigms import PARADIGMS
from paradigms.retrieve import Indexed
from paradigms.train.contrastive import Contrastive
from paradigms.train.loop import TrainingSettings, train
from paradigms.train.rows import examples_from_rows


def main(
    pairs: str, backbone: str = "offline", output: str = "results/own-pairs", steps: int | str = 30
) -> None:
    corpus, examples = examples_from_rows(pairs)
    model = PARADIGMS["colbert"](backbone, dim=128)
    settings = TrainingSettings(steps=int(steps), batch_size=min(16, len(examples)), learning_rate=3e-5)
    train(model, Contrastive(model, corpus, examples), settings, Path(output) / "training")
    model.save_pretrained(f"{output}/checkpoint")

    index = Indexed.build(model, corpus, f"{output}/index")
    queries = {example.query: example.query for example in examples[:3]}
    for query, scores in index.search(queries, k=3).items():
        lines = (f"\n  {score:.3f}  {corpus[corpus.position(d)][:80]}" for d, score in scores.items())
        print(query, *lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
