"""Time of constrained decoding: sets of next tokens and a whole beam search, each beside a baseline.

Next tokens: the baseline is plain numpy, on the same prefixes of the same text. The text is real: the
collection's documents in order, cut into words and marks, up to --tokens tokens. Prefixes start at random
places, so frequent ones are drawn more often. Both methods' sets are compared before they are timed.

Beam search: one model searches for the same queries, with the same beams and steps, among any tokens and
among n-grams of the text. The baseline is transformers' search, which must find an equally good best sequence
for every query.

Methods take turns. Results are printed as a table and written as JSON. Compare ratios: absolute times depend
on the machine.
"""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings: the text of the index, the prefixes, and the decoding."""

    collection: str = "pydocs"
    tokens: int = 1_000_000
    """number of words and marks of the text"""
    prefixes: int = 1000
    longest: int = 6
    """most tokens of a prefix; all lengths from 1 on are equally frequent"""
    backbone: str = ""
    """T5 that decodes, by name or folder; empty: a small one with random weights"""
    queries: int = 32
    """queries of the collection, decoded in one batch"""
    beams: int = 20
    span: int = 10
    """tokens per decoded sequence"""
    threads: int = 1
    """torch's threads"""
    repeats: int = 5
    """measured repetitions, after a warm-up; the median counts"""
    seed: int = 0
    output: str = "results/benchmarks/constrained_decoding.json"


if __name__ == "__main__":  # before the imports that take seconds
    arguments = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from jaxtyping import Int
from parts.shared import medians
from rich.table import Table
from torch import Tensor

from paradigms.data import load_collection
from paradigms.encoder.text import Batch
from paradigms.generative.beam import NOTHING, Hypotheses, beam_search
from paradigms.generative.identifiers import START
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import SEPARATOR, NGramIndex
from paradigms.generative.seal import seal
from paradigms.generative.small import small_t5
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal

Sequences = tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n1"]]  # tokens and offsets, as NGramIndex takes
WORD = re.compile(r"\w+|[^\w\s]")
LEAST_WORK = 0.9  # of the unconstrained search's tokens, for times of equal work
Row = tuple[str, str, float, float | None, str]  # work, method, its seconds, their ratio to what


def main(settings: Settings) -> None:
    console = Terminal()
    rows = next_token_sets(settings, console) + beam_searches(settings, console)
    names = ("work", "method", "seconds", "ratio", "meaning")
    named = [dict(zip(names, row, strict=True)) for row in rows]
    write_json(settings.output, {"settings": asdict(settings), "rows": named})
    table = Table("work", "method")
    for name in ("ms", "times"):
        table.add_column(name, justify="right")
    table.add_column("compared to")
    for work, method, seconds, ratio, meaning in rows:
        table.add_row(work, method, f"{1000 * seconds:.2f}", f"{ratio:.3g}" if ratio else "", meaning)
    console.print(table)


def next_token_sets(settings: Settings, console: Terminal) -> list[Row]:
    """Time the sets of tokens that may follow each prefix: NGramIndex, and numpy on suffix array rows."""
    documents = words(settings)
    prefixes = draw_prefixes(settings, *documents)
    start = time.perf_counter()
    index = NGramIndex.build(*documents)
    built = time.perf_counter() - start
    states = index.find(prefixes)
    branches = index.branches(states)
    tokens, successors = documents[0], len(branches.tokens) / len(states)
    console.print(
        f"{len(tokens):,} words and marks of {settings.collection}, {tokens.max() + 1:,} of them different, "
        f"in {len(index.starts) - 1:,} documents, indexed in {built:.2f} s; {len(states):,} prefixes of 1 to "
        f"{settings.longest} tokens, on average with {index.counts(states).mean():,.0f} occurrences and "
        f"{successors:.0f} successors"
    )

    def unique() -> list[np.ndarray]:
        return [np.unique(index.text[index.rows[lo:hi] + depth]) for lo, hi, depth in states]

    plain = [row[row != SEPARATOR] for row in unique()]
    if not all(map(np.array_equal, plain, np.split(branches.tokens, branches.offsets[1:-1]))):
        raise SystemExit(
            "numpy finds other next tokens than NGramIndex: times of unequal work cannot be compared"
        )
    methods = (
        lambda: index.branches(states),
        lambda: [index.branches(state[None]) for state in states],
        lambda: index.branches(index.find(prefixes)),
        unique,
    )
    known, one_by_one, searched, numpy_time = medians(methods, settings.repeats)
    work = "next-token sets"
    return [
        (work, "branches", known, None, ""),
        (work, "branches, one by one", one_by_one, None, ""),
        (work, "find, branches", searched, None, ""),
        (work, "numpy unique", numpy_time, numpy_time / known, "branches; wanted ≥ 4"),
    ]


def beam_searches(settings: Settings, console: Terminal) -> list[Row]:
    """Time one model's search among any tokens and among n-grams of the text, and transformers' search."""
    torch.set_num_threads(settings.threads)
    collection = load_collection(settings.collection)
    queries = [text for split in collection.splits.values() for text in split.queries.values()]
    with tempfile.TemporaryDirectory() as folder:
        backbone = settings.backbone or small_t5(collection.corpus, Path(folder, "t5"), seed=settings.seed)
        model = seal(backbone, collection.corpus).eval()
    index = NGramIndex.build(model.identifiers.tokens, model.identifiers.offsets)
    sources = model.tokenize(queries[: settings.queries])

    def search(constraint: NGramIndex | None) -> Hypotheses:
        return beam_search(model, sources, constraint, beams=settings.beams, length=settings.span)

    def peer() -> Int[Tensor, "b m"]:
        return generated(model, sources, settings)

    free, valid, best = search(None), search(index), peer()
    written = np.divide(*((hypotheses.tokens != NOTHING).sum() for hypotheses in (valid, free)))
    console.print(
        f"{len(sources.input_ids)} queries, {settings.beams} beams, {settings.span} of "
        f"{model.backbone.config.vocab_size:,} tokens: every search finds {len(free):,} sequences, and that "
        f"of n-grams, which end where a document does, {written:.1%} of their tokens"
    )
    if written < LEAST_WORK or not (index.counts(valid.states) > 0).all():
        raise SystemExit("the constrained search writes too little, or n-grams that are not in the text")
    first = free[np.searchsorted(free.queries, np.arange(len(best)))].scores
    scores = model.sequence_scores(sources, best[:, None].tolist(), "log_probability")
    if not np.allclose(np.concatenate(scores, 1)[0], first, atol=1e-3):
        raise SystemExit("transformers finds other best sequences: times of unequal work cannot be compared")
    times = medians((lambda: search(None), lambda: search(index), peer), settings.repeats)
    work = "beam search"
    return [
        (work, "any token", times[0], None, ""),
        (work, "n-grams of the text", times[1], times[1] / times[0], "any token; wanted ≤ 1.3"),
        (work, "transformers, any token", times[2], times[2] / times[0], "any token"),
    ]


def generated(model: Generative, sources: Batch, settings: Settings) -> Int[Tensor, "b m"]:
    """Generate each query's best sequence with transformers, without an end token."""
    arguments = {"input_ids": sources.input_ids, "attention_mask": sources.attention_mask, "do_sample": False}
    arguments |= {"num_beams": settings.beams, "num_return_sequences": settings.beams, "eos_token_id": None}
    arguments |= {"max_new_tokens": settings.span, "decoder_start_token_id": START}
    with torch.inference_mode():
        sequences = model.backbone.generate(**arguments)
    return sequences[:: settings.beams, 1:]


def words(settings: Settings) -> Sequences:
    """The collection's first words and marks, lower case, numbered as they appear."""
    numbers: dict[str, int] = {}
    tokens: list[int] = []
    offsets = [0]
    for text in load_collection(settings.collection).corpus:
        if len(tokens) >= settings.tokens:
            break
        tokens += [numbers.setdefault(word, len(numbers)) for word in WORD.findall(text.lower())]
        offsets.append(min(len(tokens), settings.tokens))
    if len(tokens) < settings.tokens:
        raise SystemExit(f"{settings.collection} has only {len(tokens)} words: set --tokens to at most that")
    return np.array(tokens[: settings.tokens]), np.array(offsets)


def draw_prefixes(
    settings: Settings, tokens: Int[np.ndarray, " t"], offsets: Int[np.ndarray, " n1"]
) -> list[list[int]]:
    """Draw prefixes: tokens after random places of the text, cut at the end of the document."""
    random = np.random.default_rng(settings.seed)
    begins = random.integers(0, len(tokens), settings.prefixes)
    ends = begins + random.integers(1, settings.longest + 1, settings.prefixes)
    ends = np.minimum(ends, offsets[np.searchsorted(offsets, begins, side="right")])
    return [tokens[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]


if __name__ == "__main__":
    main(Settings(**arguments))
