"""Time constrained decoding against a baseline: finding the allowed next tokens, and a whole beam search.

Next tokens: the baseline is plain numpy, on the same text and prefixes. The text is real: the collection's
documents in order, cut into words and punctuation marks, up to --tokens tokens. Prefixes start at random
positions, so frequent prefixes are drawn more often. Before timing, both methods must give the same sets.

Beam search: one model searches the collection's titles for one query at a time. The baseline is transformers'
`generate` with `prefix_allowed_tokens_fn`, which looks up the same titles in a dictionary of prefixes. Both
searches must find the same best score for every query. Both compute the same matrix products in nearly the
same steps, so the remaining time is compared too: CPU time outside the functions that multiply matrices.

A trie of --many identifiers, drawn from the text, is built in a separate process. Its size in bytes, the
process's peak memory growth, and the CPU seconds are reported.

Methods take turns. Compare ratios: absolute times depend on the machine.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings for the indexed text, the prefixes, and decoding."""

    collection: str = "pydocs"
    tokens: int = 1_000_000
    """number of words and punctuation marks in the text"""
    prefixes: int = 1000
    longest: int = 6
    """maximum number of tokens in a prefix; all lengths from 1 on are equally frequent"""
    backbone: str = ""
    """the T5 that decodes, by name or folder; empty: a small T5 with random weights"""
    identifiers: int = 10_000
    """maximum number of documents whose titles are searched"""
    many: int = 1_000_000
    """number of identifiers in the large trie; 0: no large trie"""
    queries: int = 32
    """number of the collection's queries to search, one at a time"""
    beams: int = 10
    threads: int = 1
    """number of torch threads"""
    repeats: int = 5
    """measured repetitions, after a warm-up; the median is reported"""
    seed: int = 0
    output: str = "results/benchmarks/constrained_decoding"


if __name__ == "__main__":  # before the slow imports
    arguments = command_line(Settings, __doc__ or "")

sys.path.append(str(Path(__file__).parents[1]))  # for the import of studies

import numpy as np
import torch
from jaxtyping import Int
from parts.shared import MiB, medians, memory
from studies.pages import Section, publish

from paradigms.data import Corpus, load_collection
from paradigms.encoder.text import Batch
from paradigms.generative.beam import beam_search
from paradigms.generative.genre import genre
from paradigms.generative.identifiers import START
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import SEPARATOR, NGramIndex
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.small import small_t5
from paradigms.io.device import processor

Sequences = tuple[Int[np.ndarray, " t"], Int[np.ndarray, " n1"]]  # tokens and offsets, as for NGramIndex
WORD = re.compile(r"\w+|[^\w\s]")
# Functions that multiply matrices in both searches; attention has two products and a softmax in one call.
PRODUCTS: list[tuple[Any, str]] = [
    (torch, "matmul"),
    (torch.nn.functional, "linear"),
    (torch.nn.functional, "scaled_dot_product_attention"),
    (torch.ops.mkldnn, "_linear_pointwise"),
]
LENGTHS = 4, 12  # minimum and maximum tokens of the large trie's identifiers


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    sections = {"sets": next_token_sets(settings), "beams": beam_searches(settings)}
    if settings.many:
        sections["trie"] = large_trie(settings)
    where = f"{settings.collection}, {settings.threads} thread{'s' * (settings.threads > 1)} of {processor()}"
    publish(settings, "Constrained decoding", f"{where}; medians of {settings.repeats} rounds.", sections)


def next_token_sets(settings: Settings) -> Section:
    """Time the search for each prefix's next tokens, by NGramIndex and by numpy on suffix array rows."""
    documents = words(settings)
    prefixes = draw_prefixes(settings, *documents)
    start = time.perf_counter()
    index = NGramIndex.build(*documents)
    built = time.perf_counter() - start
    states = index.find(prefixes)
    branches = index.branches(states)
    tokens, successors = documents[0], len(branches.tokens) / len(states)
    text = (
        f"{len(tokens):,} words and marks, {tokens.max() + 1:,} of them different, in "
        f"{len(index.starts) - 1:,} documents, indexed in {built:.2f} s; {len(states):,} prefixes of 1 to "
        f"{settings.longest} tokens, on average with {index.counts(states).mean():,.0f} occurrences and "
        f"{successors:.0f} successors."
    )

    def unique() -> list[np.ndarray]:
        return [np.unique(index.text[index.rows[lo:hi] + depth]) for lo, hi, depth in states]

    plain = [row[row != SEPARATOR] for row in unique()]
    if not all(map(np.array_equal, plain, np.split(branches.tokens, branches.offsets[1:-1]))):
        raise SystemExit("numpy and NGramIndex find different next tokens, so times are not comparable")
    methods = (
        lambda: index.branches(states),
        lambda: [index.branches(state[None]) for state in states],
        lambda: index.branches(index.find(prefixes)),
        unique,
    )
    names = "branches", "branches, one by one", "find and branches", "numpy.unique"
    seconds = medians(methods, settings.repeats)
    rows = [
        {"method": name, "ms": 1000 * taken, "times branches": taken / seconds[0]}
        for name, taken in zip(names, seconds, strict=True)
    ]
    return Section("Sets of next tokens", text, rows)


def beam_searches(settings: Settings) -> Section:
    """Time a model's beam search over titles, and transformers' beam search over the same titles."""
    collection = load_collection(settings.collection)
    corpus = collection.corpus
    few = range(min(settings.identifiers, len(corpus)))
    corpus = Corpus(corpus.ids[: len(few)], [corpus[n] for n in few], [corpus.titles[n] for n in few])
    texts = [text for split in collection.splits.values() for text in split.queries.values()]
    with tempfile.TemporaryDirectory() as folder:
        backbone = settings.backbone or small_t5(corpus, Path(folder, "t5"), seed=settings.seed)
        model = genre(backbone, corpus).eval()
    valid, allowed = GenerativeRetriever(model).valid, followers(model)
    queries = [model.tokenize([text]) for text in texts[: settings.queries]]
    width: dict[str, Any] = {"beams": settings.beams, "length": model.identifiers.longest}

    def ours() -> list[float]:
        return [float(beam_search(model, query, valid, **width).scores[0]) for query in queries]

    def peer() -> list[float]:
        return [generated(model, query, allowed, settings.beams) for query in queries]

    if not np.allclose(ours(), peer(), atol=1e-3):
        raise SystemExit("transformers finds different best titles, so times are not comparable")
    measured = {"a query": medians((ours, peer), settings.repeats, time.process_time)}
    with outside_products() as clock:
        measured["outside matrix products"] = medians((ours, peer), settings.repeats, clock)
    rows = []
    for what, seconds in measured.items():
        own, other = (1000 * taken / len(queries) for taken in seconds)
        rows.append({"CPU ms": what, "ours": own, "transformers": other, "ratio": other / own})
    text = (
        f"{len(queries)} queries one by one, {settings.beams} beams, {len(corpus):,} titles of at most "
        f"{width['length']} of {model.backbone.config.vocab_size:,} tokens."
    )
    return Section("Beam search", text, rows)


def followers(model: Generative) -> Callable[[int, torch.Tensor], list[int]]:
    """Make transformers' `prefix_allowed_tokens_fn` from a dictionary of the identifiers' prefixes."""
    after: dict[tuple[int, ...], set[int]] = {}
    for n in range(len(model.identifiers)):
        written = (START, *model.identifiers.target(n))
        for length in range(1, len(written)):
            after.setdefault(written[:length], set()).add(written[length])
    lists = {prefix: sorted(tokens) for prefix, tokens in after.items()}
    ended = [model.identifiers.end or 0]
    return lambda _, written: lists.get(tuple(written.tolist()), ended)


def generated(model: Generative, query: Batch, allowed: Any, beams: int) -> float:
    """Return the best score that transformers' constrained search finds."""
    arguments = {"input_ids": query.input_ids, "attention_mask": query.attention_mask, "do_sample": False}
    arguments |= {"num_beams": beams, "num_return_sequences": beams, "length_penalty": 0.0}
    arguments |= {"max_new_tokens": model.identifiers.longest, "decoder_start_token_id": START}
    arguments |= {"prefix_allowed_tokens_fn": allowed, "return_dict_in_generate": True, "output_scores": True}
    with torch.inference_mode():
        return float(model.backbone.generate(**arguments).sequences_scores[0])


@contextmanager
def outside_products() -> Iterator[Callable[[], float]]:
    """Yield a clock that counts this process's CPU seconds outside the functions in `PRODUCTS`."""
    inside = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal inside
            began = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                inside += time.process_time() - began

        return call

    with ExitStack() as stack:
        for module, name in PRODUCTS:
            stack.enter_context(patch.object(module, name, timed(getattr(module, name))))
        yield lambda: time.process_time() - inside


def large_trie(settings: Settings) -> Section:
    """Build a trie of many identifiers in a new process, and measure its costs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        size, peak, seconds = pool.apply(trie_costs, (settings,))
    row = {"identifiers": settings.many, "MiB": size / MiB, "MiB to build": peak / MiB, "CPU s": seconds}
    text = (
        f"Identifiers of {LENGTHS[0]} to {LENGTHS[1]} tokens; MiB to build: the peak growth of the process."
    )
    return Section("A large trie", text, [row])


def trie_costs(settings: Settings) -> tuple[int, int, float]:
    """Return the trie's size and this process's peak memory growth, in bytes, and the build's CPU seconds."""
    tokens, _ = words(settings)
    random = np.random.default_rng(settings.seed)
    lengths = random.integers(LENGTHS[0], LENGTHS[1] + 1, settings.many)
    begins = random.integers(0, len(tokens) - LENGTHS[1], settings.many)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    drawn = tokens[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)]
    NGramIndex.build(drawn[: lengths[0]], offsets[:2], whole=True)  # loads and compiles the code
    before, began = memory("VmRSS"), time.process_time()
    trie = NGramIndex.build(drawn, offsets, whole=True)
    seconds = time.process_time() - began
    size = sum(array.nbytes for array in vars(trie).values() if isinstance(array, np.ndarray))
    return size, memory("VmHWM") - before, seconds


def words(settings: Settings) -> Sequences:
    """Return the ids of the collection's first words and punctuation marks, and the documents' offsets.

    Words are lower-cased; words and marks are numbered in order of appearance.
    """
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
    """Draw prefixes: runs of tokens from random positions of the text, cut off at the document's end."""
    random = np.random.default_rng(settings.seed)
    begins = random.integers(0, len(tokens), settings.prefixes)
    ends = begins + random.integers(1, settings.longest + 1, settings.prefixes)
    ends = np.minimum(ends, offsets[np.searchsorted(offsets, begins, side="right")])
    return [tokens[begin:end].tolist() for begin, end in zip(begins, ends, strict=True)]


if __name__ == "__main__":
    main(Settings(**arguments))
