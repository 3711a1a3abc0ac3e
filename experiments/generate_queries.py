"""Generate training queries for a collection with a sequence-to-sequence model.

The model writes queries for documents by sampling; a query is kept if a retriever ranks the query's document
among the first `rank` (round trip). The output folder will contain collection/, the collection in BEIR layout
with the generated queries as its train split, for train.py and compare.py; and pairs.jsonl, for `train.py
--generated`. A second run resumes after the last finished batch of documents.

    .venv/bin/python experiments/generate_queries.py --collection path/to/nfcorpus --model MODEL
    .venv/bin/python experiments/compare.py --collection results/queries-nfcorpus/collection --steps 100

Nogueira and Lin, "From doc2query to docTTTTTquery", 2019; Dai et al., "Promptagator", ICLR 2023 (round trip).
"""

import json
from dataclasses import asdict
from pathlib import Path

from studies.settings import OneCollection, Output, Queries, Seed, at_least, launch, refusing

from paradigms.io.command_line import flags, folder_name


@flags(queries=3)
class Settings(Output, OneCollection, Queries, Seed):
    """Settings for the model, the documents and the generated queries."""

    model: str
    """sequence-to-sequence model by hub name or folder, such as google/flan-t5-small or a doc2query model"""
    prompt: str = "Write a search query that this text answers: {}"
    """the model's input; {} stands for the document"""
    retriever: str = "bm25"
    """retriever of the round trip: bm25, offline (all-MiniLM-L6-v2), or the folder of a saved paradigm"""
    rank: int = 10
    """keep a query if it finds its document at this rank or better; 0: keep all queries"""

    def __post_init__(self) -> None:
        at_least(self, queries=1)
        if self.prompt.count("{}") != 1:
            raise SystemExit(f"prompt must hold one {{}}, where the document goes, got {self.prompt!r}")
        self.output = self.output or f"results/queries-{folder_name(self.collection)}"


launch(__name__, Settings, __doc__)  # before the slow imports

import random
from dataclasses import replace

import torch
from transformers import AutoModelForSeq2SeqLM

from paradigms import load
from paradigms.baselines.bm25 import BM25
from paradigms.data import Corpus, Split, write_folder
from paradigms.encoder.backbone import load_model, load_tokenizer
from paradigms.io.device import chosen_device
from paradigms.io.files import lock_until_exit, write_text
from paradigms.io.progress import progress_bar
from paradigms.io.terminal import Terminal
from paradigms.train.negatives import mine
from paradigms.train.script import content, keep_settings, open_collection

TOP_P = 0.95  # for sampling
WORDS = 200  # of a document that the model reads
LENGTH = 32  # tokens of a query
BATCH = 32  # documents


def main(settings: Settings) -> None:
    folder = Path(settings.output)
    console = Terminal()
    collection = open_collection(settings.collection, None, console)
    bound_settings = asdict(settings) | content(model=settings.model)
    bound_settings["fingerprint"] = collection.fingerprint
    for name, split in collection.splits.items():
        if name != "train" and split.answers:
            raise SystemExit(f"{collection.name}: its split {name} has answers, which no BEIR folder holds")
    keep_settings(bound_settings, lock_until_exit(folder), {"output", "rank", "retriever"})
    with refusing():
        pairs = written(collection.corpus, settings, folder / "written.jsonl")
        good = found_again(collection.corpus, pairs, settings)
    if not good:
        raise SystemExit(f"none of {len(pairs):,} queries finds its document among the first {settings.rank}")
    rows = [json.dumps({"document": document, "query": query}) for document, query in good]
    write_text(folder / "pairs.jsonl", "\n".join(rows) + "\n")
    write_folder(
        replace(collection, splits=collection.splits | {"train": as_split(good)}), folder / "collection"
    )
    among = f" of {len(pairs):,} find their document among the first {settings.rank} of {settings.retriever}"
    summary = f"Queries: {len(good):,}{among if settings.rank else ''}. Collection: {folder / 'collection'}"
    console.print(summary, soft_wrap=True)


def as_split(pairs: list[tuple[str, str]]) -> Split:
    """Convert (document, query) pairs to a split, in which each query's document is relevant."""
    named = {f"generated-{n}": pair for n, pair in enumerate(pairs)}
    queries = {name: query for name, (_, query) in named.items()}
    return Split(queries, {name: {document: 1} for name, (document, _) in named.items()})


def written(corpus: Corpus, settings: Settings, file: Path) -> list[tuple[str, str]]:
    """Read or generate (document, query) pairs; duplicate queries for a document are dropped."""
    ids = list(corpus.ids)
    if settings.documents:
        ids = random.Random(settings.seed).sample(ids, min(settings.documents, len(ids)))
    lines = file.read_text("utf-8").splitlines(keepends=True) if file.is_file() else []
    if lines and not lines[-1].endswith("\n"):  # a previous run was interrupted while writing
        lines.pop()
        write_text(file, "".join(lines))
    done = [json.loads(line) for line in lines]
    device = chosen_device()
    tokenizer = load_tokenizer(settings.model)
    model = load_model(AutoModelForSeq2SeqLM, settings.model).to(device).eval()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream, progress_bar() as bar:
        starts = range(len(done) * BATCH, len(ids), BATCH)
        for start in bar.track(starts, description="write queries"):
            batch = ids[start : start + BATCH]
            texts = (" ".join(corpus[corpus.position(id)].split()[:WORDS]) for id in batch)
            prompts = [settings.prompt.format(text) for text in texts]
            inputs = tokenizer(prompts, padding=True, return_tensors="pt").to(device)
            torch.manual_seed(settings.seed + start)
            sampling = {"do_sample": True, "top_p": TOP_P, "top_k": 0, "max_new_tokens": LENGTH}
            tokens = model.generate(**inputs, **sampling, num_return_sequences=settings.queries)
            texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
            owners = (id for id in batch for _ in range(settings.queries))
            pairs = [[id, " ".join(text.split())] for id, text in zip(owners, texts, strict=True)]
            done.append(pairs)
            stream.write(json.dumps(pairs) + "\n")
            stream.flush()
    return list(dict.fromkeys((document, query) for pairs in done for document, query in pairs if query))


def found_again(corpus: Corpus, pairs: list[tuple[str, str]], settings: Settings) -> list[tuple[str, str]]:
    """Keep the pairs whose query finds the document, or a copy, among the first `rank`; rank 0 keeps all."""
    if not settings.rank:
        return pairs
    split = as_split(pairs)
    if settings.retriever == "bm25":
        run = BM25(corpus).search(split.queries, settings.rank, progress=True)
    else:
        run = mine(load(settings.retriever), corpus, split, settings.rank, progress=True)
    results = [set(map(corpus.first, run.get(name, {}))) for name in split.queries]
    return [pair for pair, of in zip(pairs, results, strict=True) if corpus.first(pair[0]) in of]
