"""Time of constrained decoding: sets of next tokens, and a whole beam search, each beside what it replaces.

Next tokens: beside plain numpy and tokengrams, on the same prefixes of the same text. The text is real: the
collection's documents in their order, cut into words and marks, up to --tokens tokens. Prefixes are drawn
from its places, so frequent ones are drawn more often. Every method's sets are compared before its time
counts.

Beam search: one model's for the same queries with as many beams and steps, among any tokens and among n-grams
of the text, and transformers' own, which must find as good a best sequence for every query.

Methods take turns. Printed as a table and written as JSON; absolute times belong to the machine, ratios
travel.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from paradigms.io.settings import command_line


@dataclass
class Settings:
    """Which text is indexed, which prefixes are asked for, and what is decoded."""

    collection: str = "pydocs"
    tokens: int = 1_000_000
    """words and marks of the text"""
    prefixes: int = 1000
    longest: int = 6
    """prefixes have 1 to this many tokens, each length as often"""
    backbone: str = ""
    """the T5 that decodes, by name or folder; empty: a small one with random weights"""
    queries: int = 32
    """of the collection, decoded at once"""
    beams: int = 20
    span: int = 10
    """tokens of every sequence that is decoded"""
    threads: int = 1
    """of torch"""
    repeats: int = 5
    """measured repetitions, after one that is not; the median counts"""
    seed: int = 0
    peers: str = ""
    """a Python that can import tokengrams; empty: it is left out"""
    output: str = "results/benchmarks/constrained_decoding.json"


if __name__ == "__main__":  # before the imports that take seconds
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from jaxtyping import Int
from rich.table import Table
from torch import Tensor

from paradigms.data import load_collection
from paradigms.encoder.text import Batch
from paradigms.generative.beam import Hypotheses, beam_search
from paradigms.generative.constraints import Branches
from paradigms.generative.forced import sequence_scores
from paradigms.generative.identifiers import START
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import SEPARATOR, NGramIndex
from paradigms.generative.seal import seal
from paradigms.generative.small import small_t5
from paradigms.io.files import write_json
from paradigms.io.terminal import Terminal

Sequences = tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n1"]]  # tokens and offsets, as NGramIndex takes
WORD = re.compile(r"\w+|[^\w\s]")
# Run by the Python of --peers in a folder with text.npy, where the largest symbol closes a document, and
# work.json. Leave offsets.npy and tokens.npy there and print seconds: of the queries alone, not of making
# arrays of their answers.
PEERS = {
    "tokengrams": """
import json, time
import numpy as np
from tokengrams import InMemoryIndex
text, work = np.load("text.npy").tolist(), json.load(open("work.json"))
end = max(text)
index = InMemoryIndex(text, vocab=end + 1)
seconds = []
for _ in range(work["repeats"] + 1):
    start = time.perf_counter()
    counts = [index.count_next(prefix) for prefix in work["prefixes"]]
    seconds.append(time.perf_counter() - start)
sets = [np.flatnonzero(np.array(row[:end])) for row in counts]
np.save("offsets.npy", np.cumsum([0, *map(len, sets)]))
np.save("tokens.npy", np.concatenate(sets))
print(json.dumps(seconds[1:]))
"""
}


class Missing(Exception):
    """A peer that cannot be measured, and why."""


@dataclass
class Row:
    """One line of the table: of `work`, how long `method` takes."""

    work: str
    method: str
    seconds: float
    ratio: float | None = None
    meaning: str = ""
    """what `seconds` is the ratio to, and what is wanted of it"""


def main(settings: Settings) -> None:
    console = Terminal()
    rows = next_token_sets(settings, console) + beam_searches(settings, console)
    write_json(settings.output, {"settings": asdict(settings), "rows": [asdict(row) for row in rows]})
    console.print(as_table(rows))


def next_token_sets(settings: Settings, console: Terminal) -> list[Row]:
    """What may follow each prefix, by NGramIndex and by what else answers this.

    numpy is compared to `branches`: both know the rows of the suffix array. Peers are given tokens, and are
    compared to `find` and `branches` together.
    """
    documents = words(settings)
    prefixes = draw_prefixes(settings, *documents)
    start = time.perf_counter()
    index = NGramIndex.build(*documents)
    built = time.perf_counter() - start
    states = index.find(*prefixes)
    found = index.branches(states)
    tokens, successors = documents[0], len(found.tokens) / len(states)
    console.print(
        f"{len(tokens):,} words and marks of {settings.collection}, {tokens.max() + 1:,} of them different, "
        f"in {len(index.starts) - 1:,} documents, indexed in {built:.2f} s; {len(states):,} prefixes of 1 to "
        f"{settings.longest} tokens, on average with {index.counts(states).mean():,.0f} occurrences and "
        f"{successors:.0f} successors"
    )

    def unique() -> list[np.ndarray]:
        return [np.unique(index.text[index.rows[lo:hi] + depth]) for lo, hi, depth in states]

    plain = [row[row != SEPARATOR] for row in unique()]
    check_equal("numpy unique", np.cumsum([0, *map(len, plain)]), np.concatenate(plain), found)
    work = "next-token sets"
    known, one_by_one, searched, numpy_time = measured(
        settings,
        lambda: index.branches(states),
        lambda: [index.branches(state[None]) for state in states],
        lambda: index.branches(index.find(*prefixes)),
        unique,
    )
    rows = [
        Row(work, "branches", known),
        Row(work, "branches, one by one", one_by_one),
        Row(work, "find, branches", searched),
        Row(work, "numpy unique", numpy_time, numpy_time / known, "branches; wanted ≥ 4"),
    ]
    for name, program in PEERS.items():
        try:
            taken = measured_peer(settings, name, program, documents, prefixes, found)
            rows.append(Row(work, name, taken, taken / searched, "find, branches; wanted ≥ 10"))
        except Missing as missing:
            console.print(f"{name} is missing: {missing}")
    return rows


def beam_searches(settings: Settings, console: Terminal) -> list[Row]:
    """One model's search among any tokens and among n-grams of the text, and transformers' search."""
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
    console.print(
        f"{len(sources.input_ids)} queries, {settings.beams} beams, {settings.span} of "
        f"{model.backbone.config.vocab_size:,} tokens: every search finds {len(free):,} sequences"
    )
    if not np.array_equal(valid.lengths, free.lengths) or not (index.counts(valid.states) > 0).all():
        raise SystemExit("the constrained search finds fewer or shorter sequences, or some outside the text")
    first = free[np.searchsorted(free.queries, np.arange(len(best)))].scores
    scores = sequence_scores(model, sources, best[:, None].tolist(), "log_probability")
    if not np.allclose(np.concatenate(scores, 1)[0], first, atol=1e-3):
        raise SystemExit("transformers finds other best sequences: times of unequal work say nothing")
    times = measured(settings, lambda: search(None), lambda: search(index), peer)
    work = "beam search"
    return [
        Row(work, "any token", times[0]),
        Row(work, "n-grams of the text", times[1], times[1] / times[0], "any token; wanted ≤ 1.3"),
        Row(work, "transformers, any token", times[2], times[2] / times[0], "any token"),
    ]


def generated(model: Generative, sources: Batch, settings: Settings) -> Int[Tensor, "b m"]:
    """The best sequence of each query as transformers finds it; no token ends it."""
    with torch.inference_mode():
        found = model.backbone.generate(
            input_ids=sources.input_ids,
            attention_mask=sources.attention_mask,
            num_beams=settings.beams,
            num_return_sequences=settings.beams,
            max_new_tokens=settings.span,
            do_sample=False,
            decoder_start_token_id=START,
            eos_token_id=None,
        )
    return found[:: settings.beams, 1:]


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
) -> Sequences:
    """What follows random places of the text, cut where the document ends."""
    random = np.random.default_rng(settings.seed)
    begins = random.integers(0, len(tokens), settings.prefixes)
    ends = begins + random.integers(1, settings.longest + 1, settings.prefixes)
    ends = np.minimum(ends, offsets[np.searchsorted(offsets, begins, side="right")])
    prefixes = [tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return np.concatenate(prefixes), np.cumsum([0, *map(len, prefixes)])


def measured(settings: Settings, *functions: Callable[[], object]) -> list[float]:
    """The median of the seconds that each function takes, in turns, after a run that does not count."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(settings.repeats + 1):
        for function, taken in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


def measured_peer(
    settings: Settings, name: str, program: str, documents: Sequences, prefixes: Sequences, found: Branches
) -> float:
    """The peer's median of seconds, once its sets are the same; Missing where it does not run."""
    if not settings.peers:
        raise Missing("give --peers a Python that can import it")
    tokens, offsets = documents
    end = int(tokens.max()) + 1
    asked = [part.tolist() for part in np.split(prefixes[0], prefixes[1][1:-1])]
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "text.npy"), np.insert(tokens, offsets[1:], end))
        write_json(Path(folder, "work.json"), {"prefixes": asked, "repeats": settings.repeats})
        command = [str(Path(settings.peers).absolute()), "-c", program]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise Missing(f"--peers names no Python: {error}") from error
        if done.returncode:
            raise Missing(f"with {settings.peers}, {done.stderr.strip().splitlines()[-1]}")
        sets = [np.load(Path(folder, f"{part}.npy"), allow_pickle=False) for part in ("offsets", "tokens")]
        check_equal(name, sets[0], sets[1], found)
        return statistics.median(json.loads(done.stdout))


def check_equal(name: str, offsets: np.ndarray, tokens: np.ndarray, found: Branches) -> None:
    if not (np.array_equal(offsets, found.offsets) and np.array_equal(tokens, found.tokens)):
        raise SystemExit(f"{name} finds other next tokens than NGramIndex: times of unequal work say nothing")


def as_table(rows: list[Row]) -> Table:
    table = Table()
    for column in ("work", "method", "ms", "times", "compared to"):
        table.add_column(column, justify="right" if column in ("ms", "times") else "left")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        table.add_row(row.work, row.method, f"{1000 * row.seconds:.2f}", ratio, row.meaning)
    return table


if __name__ == "__main__":
    main(Settings(**given))
