"""Queries for a collection that has none to train on, written by a sequence-to-sequence model.

The model writes queries for documents by sampling; a query is kept where a retriever ranks its document among
the first `rank` (round trip). The output folder gets collection/, the collection in BEIR layout with these
queries as its split train, for train.py and compare.py, and pairs.jsonl for `train.py --generated`. A second
start goes on after the last batch of documents.

    .venv/bin/python experiments/generate_queries.py --collection path/to/nfcorpus \\
        --model google/flan-t5-small
    .venv/bin/python experiments/compare.py --collection results/queries-nfcorpus/collection --steps 100

Nogueira and Lin, "From doc2query to docTTTTTquery", 2019; Dai et al., "Promptagator", ICLR 2023 (round trip).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from studies.settings import at_least

from paradigms.io.settings import command_line, folder_name


@dataclass
class Settings:
    """Who writes what for which documents."""

    model: str
    """sequence-to-sequence model by hub name or folder, such as google/flan-t5-small or a doc2query model"""
    collection: str = "pydocs"
    """pydocs (built in), a folder in BEIR layout, hf:OWNER/NAME or irds:IDENTIFIER"""
    documents: int = 0
    """for which queries are written, drawn at random; 0: all"""
    queries: int = 3
    """written for each document, before the filter"""
    prompt: str = "Write a search query that this text answers: {}"
    """what the model is given; {} is the document"""
    words: int = 200
    """of a document that the model reads at most"""
    length: int = 32
    """tokens of a query at most"""
    top_p: float = 0.95
    """of sampling"""
    retriever: str = "bm25"
    """of the round trip: bm25, offline (all-MiniLM-L6-v2), or the folder of a saved paradigm"""
    rank: int = 10
    """at which the document must be found by the query; 0: all queries are kept"""
    batch_size: int = 32
    seed: int = 0
    output: str = ""
    """results folder; empty: results/queries-COLLECTION"""

    def __post_init__(self) -> None:
        at_least(self, queries=1, words=1, length=1, batch_size=1, documents=0, rank=0)
        if not 0 < self.top_p <= 1:
            raise SystemExit(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.prompt.count("{}") != 1:
            raise SystemExit(f"prompt must hold one {{}}, where the document goes, got {self.prompt!r}")
        self.output = self.output or f"results/queries-{folder_name(self.collection)}"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import random
from dataclasses import replace

import torch
from transformers import AutoModelForSeq2SeqLM

from paradigms import load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, Run, Split, write_folder
from paradigms.encoder.backbone import load_model, load_tokenizer
from paradigms.io.files import held, write_text
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal, shown
from paradigms.train.job import keep_settings, open_collection
from paradigms.train.mining import mine


def main(settings: Settings) -> None:
    folder, console = Path(settings.output), Terminal()
    collection = open_collection(settings.collection, None, console)
    kept = asdict(settings) | {"fingerprint": collection.fingerprint}
    for name, split in collection.splits.items():
        if name != "train" and split.answers:
            raise SystemExit(f"{collection.name}: its split {name} has answers, which no BEIR folder holds")
    keep_settings(kept, held(folder), {"output", "rank", "retriever"})
    try:
        pairs = written(collection.corpus, settings, folder / "written.jsonl")
        good = found_again(collection.corpus, pairs, settings)
    except (OSError, ValueError) as error:
        raise SystemExit(shown(error)) from error
    if not good:
        raise SystemExit(f"none of {len(pairs):,} queries finds its document among the first {settings.rank}")
    rows = [json.dumps({"document": document, "query": query}) for document, query in good]
    write_text(folder / "pairs.jsonl", "\n".join(rows) + "\n")
    train = Split(
        {f"generated-{n}": query for n, (_, query) in enumerate(good)},
        {f"generated-{n}": {document: 1} for n, (document, _) in enumerate(good)},
    )
    write_folder(replace(collection, splits=collection.splits | {"train": train}), folder / "collection")
    console.print(
        f"{len(good):,} of {len(pairs):,} queries find their document among the first {settings.rank} of "
        f"{settings.retriever}. Collection: {folder / 'collection'}"
        if settings.rank
        else f"{len(good):,} queries. Collection: {folder / 'collection'}",
        soft_wrap=True,
    )


def written(corpus: Corpus, settings: Settings, file: Path) -> list[tuple[str, str]]:
    """(document, query) pairs, in the file or written now; of a document each query once."""
    ids = list(corpus.ids)
    if settings.documents:
        ids = random.Random(settings.seed).sample(ids, min(settings.documents, len(ids)))
    lines = file.read_text("utf-8").splitlines(keepends=True) if file.is_file() else []
    if lines and not lines[-1].endswith("\n"):  # of a run that was interrupted as it wrote
        lines.pop()
        write_text(file, "".join(lines))
    done = [json.loads(line) for line in lines]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = load_tokenizer(settings.model)
    model = load_model(AutoModelForSeq2SeqLM, settings.model).to(device).eval()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream, progress_bar() as bar:
        starts = range(len(done) * settings.batch_size, len(ids), settings.batch_size)
        for start in bar.track(starts, description="write queries"):
            some = ids[start : start + settings.batch_size]
            texts = (" ".join(corpus[corpus.position(id)].split()[: settings.words]) for id in some)
            asked = tokenizer(
                [settings.prompt.format(text) for text in texts], padding=True, return_tensors="pt"
            ).to(device)
            torch.manual_seed(settings.seed + start)
            tokens = model.generate(
                **asked,
                do_sample=True,
                top_p=settings.top_p,
                top_k=0,
                max_new_tokens=settings.length,
                num_return_sequences=settings.queries,
            )
            texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
            made = [
                [id, " ".join(texts[settings.queries * n + m].split())]
                for n, id in enumerate(some)
                for m in range(settings.queries)
            ]
            done.append(made)
            stream.write(json.dumps(made) + "\n")
            stream.flush()
    pairs = ((document, query) for made in done for document, query in made if query)
    return list(dict.fromkeys(pairs))


def found_again(corpus: Corpus, pairs: list[tuple[str, str]], settings: Settings) -> list[tuple[str, str]]:
    """The pairs whose query finds its document among the first `rank`; all where that is 0."""
    if not settings.rank:
        return pairs
    queries = {str(n): query for n, (_, query) in enumerate(pairs)}
    run: Run
    if settings.retriever == "bm25":
        run = BM25.build(corpus, corpus.ids).search(queries, settings.rank, progress=True)
    else:
        split = Split(queries, {str(n): {document: 1} for n, (document, _) in enumerate(pairs)})
        run = mine(load(settings.retriever), corpus, split, settings.rank, progress=True)
    return [pair for n, pair in enumerate(pairs) if pair[0] in run.get(str(n), {})]


if __name__ == "__main__":
    main(Settings(**given))
