"""`python -m paradigms oracle INDEX --split test`: is the index the limit, or the query encoder?

For each judged query: can any query vectors rank its relevant documents above all others, and do the model's
vectors? Document vectors are taken from the index, as they are stored (`theory.answerable`).
"""

import argparse
from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from paradigms.align import PoolTopK
from paradigms.cli.indexed import open_folder
from paradigms.core import Tokens
from paradigms.data import load_collection
from paradigms.evaluate import seeds_interval
from paradigms.io.progress import progress_bar
from paradigms.model import Paradigm
from paradigms.store import Store
from theory.answerable import Answer, max_over_tokens, maxima, one_vector, sum_of_maxima, verified

QUERIES = 100  # most judged queries, drawn at random
VERIFIED, LARGEST = 5, 64  # answers of each kind to check in rational arithmetic; most numbers of a vector


def run_oracle(settings: argparse.Namespace) -> None:
    """Print the shares of queries that some vectors answer, that none answer, and that the model answers."""
    if not settings.split:
        raise ValueError("oracle needs judged queries: give --split, such as test")
    opened = open_folder(settings.folder, pickled=settings.pickled)
    if opened.made.passages:
        raise ValueError(f"{settings.folder} holds passages, and judgements name documents: index them whole")
    store, model = opened.index.index.store, opened.index.model
    check(model, store.longest)
    split = load_collection(opened.made.source).split(settings.split)
    tokens, owners, ids = stored(store)
    place = {id: n for n, id in enumerate(ids)}
    relevant = {
        query: [place[id] for id, grade in judged.items() if grade > 0 and id in place]
        for query, judged in split.judgements.items()
    }
    asked = sorted(query for query, rows in relevant.items() if 0 < len(rows) < len(ids))
    if not asked:
        raise ValueError(f"{settings.split}: no query has a relevant document in {settings.folder}")
    drawn = np.random.default_rng(0).permutation(len(asked))[:QUERIES]
    names = [asked[n] for n in sorted(drawn)]
    encoded = model.encode_queries([split.queries[name] for name in names])
    answers, reached, precision = [], [], []
    with progress_bar() as bar:
        for n, name in bar.track(list(enumerate(names)), description="oracle"):
            rows, Q = np.array(sorted(relevant[name])), query_vectors(encoded, n)
            scores, _ = maxima(tokens, owners, Q)
            best = np.argsort(-scores, kind="stable")[: len(rows)]
            precision.append(np.isin(best, rows).mean())
            reached.append(np.min(scores[rows]) > np.max(np.delete(scores, rows)))
            answers.append(Answer(True, query=Q) if reached[-1] else answer(tokens, owners, rows, Q))
    for line in summary(answers, reached, precision, opened.made.model):
        print(line)
    each = [relevant[name] for name in names]
    print(check_exactly(tokens, owners, answers, each))
    print(f"The index has {store.bytes_per_document:,.0f} bytes per document.")


def check(model: Paradigm, longest: int) -> None:
    """Raise ValueError unless scores are sums of maxima over a document's tokens."""
    align, salience = model.recipe.align, "salience" in model.reads
    if salience or not (align.is_maxsim(longest) or isinstance(align, PoolTopK)):
        why = "weighs tokens by salience" if salience else f"aligns by {align}"
        raise ValueError(
            f"{model.name} {why}: oracle supports one vector and maxima over a document's tokens (dpr, "
            "me_bert, colbert, and xtr with all tokens retrieved)"
        )


def stored(store: Store) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(vectors of all tokens [t, h], the document of each, ids of the documents that have a token)."""
    rows = np.flatnonzero(store.living & (np.diff(store.offsets) > 0))
    parts = [store.decoded(slice(store.offsets[row], store.offsets[row + 1]))["vectors"] for row in rows]
    owners = np.repeat(np.arange(len(rows)), [len(part) for part in parts])
    return np.concatenate(parts).astype(np.float64), owners, store.names(rows)


def query_vectors(queries: Tokens, n: int) -> np.ndarray:
    """The vectors of the n-th query's tokens, [N, h]."""
    return queries.vectors[n, 0][queries.mask[n, 0]].double().cpu().numpy()


def answer(tokens: np.ndarray, owners: np.ndarray, rows: np.ndarray, Q: np.ndarray) -> Answer:
    """Whether some N query vectors rank the relevant documents `rows` first. Q [N, h]: the model's."""
    if len(Q) > 1:
        return sum_of_maxima(tokens, owners, rows, query_tokens=len(Q), start=Q)
    if len(tokens) == owners[-1] + 1:
        return one_vector(tokens, rows)
    return max_over_tokens(tokens, owners, rows)


def summary(
    answers: Sequence[Answer], reached: Sequence[bool], precision: Sequence[float], name: str
) -> list[str]:
    """Lines that report which queries can be answered, and which ones the model answers."""

    def share(values: Sequence[float]) -> str:
        successes = binomtest(
            int(np.sum(values)), len(values)
        )  # Wilson's: a bootstrap of 0 or 1 has no width
        low, high = successes.proportion_ci(method="wilson")
        return f"{np.mean(values):.0%} [{low:.0%}, {high:.0%}]"

    possible, none, open_ = (
        [answer.answerable is value for answer in answers] for value in (True, False, None)
    )
    lost = [can and not does for can, does in zip(possible, reached, strict=True)]
    lines = [
        f"Of {len(answers)} judged queries, some query vectors rank every relevant document above all others "
        f"for {share(possible)}, and no query vectors do for {share(none)} [95% intervals over queries]."
    ]
    if any(open_):
        lines.append(f"For {share(open_)} neither was found: the limit lies between.")
    mean, low, high = seeds_interval(np.array(precision)[None])
    lines.append(
        f"The query vectors of {name} do for {share(reached)}, so the query encoder loses {share(lost)}; "
        f"their R-precision is {mean:.2f} [{low:.2f}, {high:.2f}]."
    )
    return lines


def check_exactly(
    tokens: np.ndarray, owners: np.ndarray, answers: Sequence[Answer], relevant: Sequence[list[int]]
) -> str:
    """Report how many answers in a sample hold in rational arithmetic, and the largest residual."""
    held = {True: 0, False: 0}
    tried = {True: 0, False: 0}
    for one, rows in zip(answers, relevant, strict=True):
        if one.query is not None and len(one.query) == 1 and tried[True] < VERIFIED:
            _, chosen = maxima(tokens, owners, one.query)
            best, others = chosen[rows, 0], np.flatnonzero(~np.isin(owners, rows))
            tried[True] += 1
            held[True] += verified(tokens[np.append(best, others)], one, np.arange(len(best)))
        if one.weights is not None and tokens.shape[1] <= LARGEST and tried[False] < VERIFIED:
            tried[False] += 1
            held[False] += verified(tokens, one)
    residual = max((one.residual for one in answers if one.weights is not None), default=0.0)
    return (
        f"In rational arithmetic {held[True]} of {tried[True]} queries and {held[False]} of {tried[False]} "
        f"certificates hold; the largest residual of a certificate is {residual:.0e}."
    )
