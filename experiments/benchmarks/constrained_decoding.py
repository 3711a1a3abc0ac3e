"""Time a constrained beam search beside transformers', and build a large trie of identifiers.

One model searches the collection's titles for one query at a time. The baseline is transformers' `generate`
with `prefix_allowed_tokens_fn`, which looks up the same titles in a dictionary of prefixes. Both searches
must find the same best score for every query. Both compute the same matrix products in nearly the same steps,
so the remaining time is compared too: CPU time outside the functions that multiply matrices.

A trie of a million identifiers, runs of words and punctuation marks from the first --tokens of the
collection's documents, is built in a separate process. Its size in bytes, the process's peak memory growth,
and the CPU seconds are reported.

Methods take turns. Compare ratios: absolute times depend on the machine.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from parts.settings import Benchmark
from studies.settings import CollectionName, Queries, Rounds, Seed, Threads, launch

from paradigms.io.command_line import flags


@flags(queries=32)
class Settings(Benchmark, Threads, Rounds, Seed, CollectionName, Queries):
    """Settings for the text and decoding; queries are searched one at a time."""

    tokens: int = 1_000_000
    """number of words and punctuation marks in the text"""
    backbone: str = ""
    """the T5 that decodes, by name or folder; empty: a small T5 with random weights"""


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import torch
from jaxtyping import Int
from parts.measuring import MiB, medians, memory, new_process, timed
from studies.pages import Section, publish

from paradigms.data import Corpus, load_collection
from paradigms.encoder.text import Batch
from paradigms.generative.beam import beam_search
from paradigms.generative.genre import genre
from paradigms.generative.identifiers import START
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import NGramIndex
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
IDENTIFIERS = 10_000  # documents whose titles are searched, at most
BEAMS = 10
MANY = 1_000_000  # identifiers in the large trie
LENGTHS = 4, 12  # minimum and maximum tokens of the large trie's identifiers


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    sections = {"beams": beam_searches(settings), "trie": large_trie(settings)}
    where = f"{settings.collection}, {settings.threads} thread{'s' * (settings.threads > 1)} of {processor()}"
    publish(settings, "Constrained decoding", f"{where}; medians of {settings.rounds} rounds.", sections)


def beam_searches(settings: Settings) -> Section:
    """Time a model's beam search over titles, and transformers' beam search over the same titles."""
    collection = load_collection(settings.collection)
    corpus = collection.corpus
    few = range(min(IDENTIFIERS, len(corpus)))
    corpus = Corpus(corpus.ids[: len(few)], [corpus[n] for n in few], [corpus.titles[n] for n in few])
    texts = [text for split in collection.splits.values() for text in split.queries.values()]
    with tempfile.TemporaryDirectory() as folder:
        backbone = settings.backbone or small_t5(corpus, Path(folder, "t5"), seed=settings.seed)
        model = genre(backbone, corpus).eval()
    valid = GenerativeRetriever(model).valid
    allowed = followers(model)
    queries = [model.tokenize([text]) for text in texts[: settings.queries]]
    width: dict[str, Any] = {"beams": BEAMS, "length": model.identifiers.longest}

    def ours() -> list[float]:
        return [float(beam_search(model, query, valid, **width).scores[0]) for query in queries]

    def peer() -> list[float]:
        return [generated(model, query, allowed, BEAMS) for query in queries]

    if not np.allclose(ours(), peer(), atol=1e-3):
        raise SystemExit("transformers finds different best titles, so times are not comparable")
    seconds_of = {"a query": medians((ours, peer), settings.rounds, time.process_time)}
    with outside_products() as clock:
        seconds_of["outside matrix products"] = medians((ours, peer), settings.rounds, clock)
    rows = []
    for what, seconds in seconds_of.items():
        mine, its = (1000 * of / len(queries) for of in seconds)
        rows.append({"CPU ms": what, "ours": mine, "transformers": its, "ratio": its / mine})
    text = (
        f"{len(queries)} queries one by one, {BEAMS} beams, {len(corpus):,} titles of at most "
        f"{width['length']} of {model.backbone.config.vocab_size:,} tokens."
    )
    return Section("Beam search", text, rows)


def followers(model: Generative) -> Callable[[int, torch.Tensor], list[int]]:
    """Make transformers' `prefix_allowed_tokens_fn` from a dictionary of the identifiers' prefixes."""
    after: dict[tuple[int, ...], set[int]] = {}
    for n in range(len(model.identifiers)):
        written = (START, *model.target(n))
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
    with new_process() as process:
        size, peak, seconds = process.submit(trie_costs, settings).result()
    row = {"identifiers": MANY, "MiB": size / MiB, "MiB to build": peak / MiB, "CPU s": seconds}
    text = (
        f"Identifiers of {LENGTHS[0]} to {LENGTHS[1]} tokens; MiB to build: the peak growth of the process."
    )
    return Section("A large trie", text, [row])


def trie_costs(settings: Settings) -> tuple[int, int, float]:
    """Return the trie's size and this process's peak memory growth, in bytes, and the build's CPU seconds."""
    tokens, _ = words(settings)
    random = np.random.default_rng(settings.seed)
    lengths = random.integers(LENGTHS[0], LENGTHS[1] + 1, MANY)
    begins = random.integers(0, len(tokens) - LENGTHS[1], MANY)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    sample = tokens[np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)]
    NGramIndex.build(sample[: lengths[0]], offsets[:2], trie=True)  # loads and compiles the code
    before = memory("VmRSS")
    seconds, trie = timed(lambda: NGramIndex.build(sample, offsets, trie=True))
    size = sum(array.nbytes for array in vars(trie).values() if isinstance(array, np.ndarray))
    return size, memory("VmHWM") - before, seconds


def words(settings: Settings) -> Sequences:
    """Return ids of the collection's first lower-cased words and marks, and the documents' offsets."""
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
