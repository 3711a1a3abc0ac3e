"""Time a constrained beam search beside transformers'.

One model searches the collection's titles for one query at a time. The baseline is transformers' `generate`
with `prefix_allowed_tokens_fn`, which looks up the same titles in a dictionary of prefixes. Both searches
must find the same best score for every query. Both compute the same matrix products in nearly the same steps,
so the remaining time is compared too: CPU time outside the functions that multiply matrices.

Methods take turns. Compare ratios: absolute times depend on the machine.
"""

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
    """Settings for decoding; queries are searched one at a time."""

    backbone: str = ""
    """the T5 that decodes, by name or folder; empty: a small T5 with random weights"""


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import torch
from parts.measuring import medians
from studies.pages import Section, publish

from paradigms.data import Corpus, load_collection
from paradigms.encoder.text import Batch
from paradigms.generative.beam import beam_search
from paradigms.generative.genre import genre
from paradigms.generative.identifiers import START
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.small import small_t5
from paradigms.io.device import processor

# Functions that multiply matrices in both searches; attention has two products and a softmax in one call.
PRODUCTS: list[tuple[Any, str]] = [
    (torch, "matmul"),
    (torch.nn.functional, "linear"),
    (torch.nn.functional, "scaled_dot_product_attention"),
    (torch.ops.mkldnn, "_linear_pointwise"),
]
IDENTIFIERS = 10_000  # documents whose titles are searched, at most
BEAMS = 10


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    where = f"{settings.collection}, {settings.threads} thread{'s' * (settings.threads > 1)} of {processor()}"
    publish(
        settings,
        "Constrained decoding",
        f"{where}; medians of {settings.rounds} rounds.",
        {"beams": beam_searches(settings)},
    )


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
