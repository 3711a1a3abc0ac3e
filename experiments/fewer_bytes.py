"""Measure nDCG@10 and bytes per document for fewer tokens, dimensions or bits.

One ColBERT encodes a sample of each collection once; all other indexes are made from these vectors. Each way
of replacing a document's tokens D by D′ has a certificate: the Hausdorff distance between D and D′ bounds the
error of a score, and a query's ten best documents are certified if errors within the bounds cannot change
them. The recall of candidates by fixed-dimensional encodings (MUVERA) is compared with the prediction of
`theory.buckets` from the angles between token vectors, with and without subtraction of their mean.
"""

from dataclasses import replace
from pathlib import Path

from studies.settings import Collections, Documents, Output, Queries, at_least, launch, refusing

from paradigms.io.command_line import flags, folder_name


@flags(documents=600, queries=60)
class Settings(Output, Collections, Documents, Queries):
    """Settings for models, collections, and measurements."""

    model: str = ""
    """folder of a saved ColBERT; empty: an untrained one over all-MiniLM-L6-v2"""

    def __post_init__(self) -> None:
        at_least(self, queries=1)
        super().__post_init__()


launch(__name__, Settings, __doc__)  # before the slow imports

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from studies.model_runs import measured_once
from studies.pages import Rows, Section, interval_text, publish

from paradigms import PARADIGMS, Paradigm, load
from paradigms.core import Tokens
from paradigms.data import Collection, Run, Split
from paradigms.evaluate import PerQuery, holm, paired_test, per_query, seeds_interval
from paradigms.find import Index, Store, kinds, open_index
from paradigms.identity import identity
from paradigms.io.terminal import Terminal
from paradigms.loading import as_paradigm
from paradigms.muvera import FixedEncoding
from paradigms.recipe import Recipe
from paradigms.train.script import open_collection
from theory.buckets import expected_recall, expected_shares

LENGTH = 128  # tokens of a document
BLOCK = 1 << 16  # padded tokens to read at once
LISTS = 256  # number of lists of the compressed indexes
DOCUMENTS = 200  # from the start of the sample, for the prediction of recall
QUERIES = 6  # for the same
FIRST = 10  # number of best documents that an index should find
CANDIDATES = 20  # number of candidates from fixed encodings that should include the best documents
MEAN = 2.0  # norm of the mean that is added to unit vectors in an extra dimension
Way = tuple[str, str]
WARD_2 = ("pooled, ward", "pool=2")
WARD_4 = ("pooled, ward", "pool=4")
PAIRS: Sequence[tuple[Way, Way]] = (
    (("bits", "bits=8"), WARD_2),
    (WARD_2, ("pooled, sequential", "pool=2")),
    (WARD_2, ("pruned", "keep=0.5")),
    (WARD_2, ("dimensions", "1/2")),
    (("bits", "bits=4"), WARD_4),
    (WARD_4, ("pooled, sequential", "pool=4")),
    (WARD_4, ("pruned", "keep=0.25")),
    (WARD_4, ("dimensions", "1/4")),
    (("bits", "bits=2"), ("pooled and bits", "pool=2, bits=4")),
    (("bits", "bits=1"), ("pooled and bits", "pool=2, bits=2")),
)
SAME = 1.15  # the larger size may be this much larger
NDCG = "nDCG@10"
BYTES = "bytes/document"


def main(settings: Settings) -> None:
    console = Terminal()
    folder = Path(settings.output)
    torch.set_num_threads(1)
    with refusing():
        model = open_model(settings)
    results: dict[str, Rows] = {}
    for name in settings.collections:
        place = folder / folder_name(name)
        store, split = encoded(model, name, settings, console)
        queries = model.encode_queries(list(split.queries.values()))
        parts: dict[str, Callable[[], Rows]] = {
            "fewer": partial(fewer, store, model.recipe, split, queries),
            "law": partial(law, store, queries),
        }
        question = {"queries": list(split.queries), "model": identity(model.encoder)}
        question["documents"] = f"{store.checksum():016x}"
        for part, measure in parts.items():
            rows = measured_once(place / f"{part}.json", question, measure)
            results.setdefault(part, []).extend({"collection": folder_name(name)} | row for row in rows)
    summary = f"{settings.documents} documents and up to {settings.queries} queries of each collection."
    publish(settings, "Fewer bytes", summary, described(results))


def sampled(collection: Collection, settings: Settings) -> tuple[list[int], Split]:
    """Draw document rows, and test queries whose relevant documents are all among these rows.

    Queries are drawn first, until their relevant documents fill half of the sample.
    """
    draw = np.random.default_rng(0)
    test = collection.split("test")
    count = min(settings.documents or len(collection.corpus), len(collection.corpus))
    chosen: list[str] = []
    rows: set[int] = set()
    for n in draw.permutation(len(test.queries)).tolist():
        query = list(test.queries)[n]
        judged = test.judgements.get(query, {})
        relevant = {collection.corpus.position(d) for d, grade in judged.items() if grade > 0}
        if relevant and len(rows | relevant) <= max(1, count // 2) and len(chosen) < settings.queries:
            chosen.append(query)
            rows |= relevant
    others = (n for n in draw.permutation(len(collection.corpus)).tolist() if n not in rows)
    rows |= {n for n, _ in zip(others, range(count - len(rows)), strict=False)}
    return sorted(rows), test.only(chosen)


def open_model(settings: Settings) -> Paradigm:
    if settings.model:
        model = as_paradigm(load(settings.model), settings.model)
        if not model.recipe.align.is_maxsim():
            raise SystemExit(f"{settings.model} is not a ColBERT: only errors of sums of maxima are bounded")
        return model.eval()
    torch.manual_seed(0)  # seed of the projection
    return PARADIGMS["colbert"]("offline", document_length=LENGTH).eval()


def encoded(model: Paradigm, name: str, settings: Settings, console: Terminal) -> tuple[Store, Split]:
    """Build or open the store of a collection's sample; return the store and the sample's queries."""
    collection = open_collection(name, None, console)
    rows, split = sampled(collection, settings)
    folder = Path(settings.output) / folder_name(name) / "exact"
    ids = [collection.corpus.ids[n] for n in rows]
    texts = [collection.corpus[n] for n in rows]
    if not folder.is_dir():
        return Store.build(kinds.exact(), model, ids, texts, folder, progress=True), split
    store = open_index(folder).store
    store.check(model)
    if store.ids != ids:
        raise SystemExit(f"{folder} holds another sample of {name}: choose another --output")
    return store, split


def make_stores(exact: Store) -> Iterator[tuple[str, str, Store, float]]:
    """Yield (kind, name, store, bytes per document) for the full store and for each way to shrink it."""
    shrunk: list[tuple[str, list[dict[str, Any]]]] = [
        ("pooled, ward", [{"pool": 2}, {"pool": 4}]),
        ("pooled, sequential", [{"pool": n, "pooling": "sequential"} for n in (2, 4)]),
        ("pruned", [{"keep": 0.5}, {"keep": 0.25}]),
        ("bits", [{"bits": bits} for bits in (8, 4, 2, 1)]),
        ("pooled and bits", [{"pool": 2, "bits": 4}, {"pool": 2, "bits": 2}]),
    ]
    yield "all tokens", "float16", exact, exact.bytes_per_document
    for name, settings in shrunk:
        for fewer in settings:
            way = ", ".join(f"{key}={value}" for key, value in fewer.items() if key != "pooling")
            bits = fewer.pop("bits", None)
            kind = kinds.compressed(bits, LISTS) if bits else kinds.exact()
            store = exact.copy(kind, **fewer)
            yield name, way, store, store.bytes_per_document
    for part in (2, 4):
        dim = exact.dim // part
        same = {key: exact.manifest[key] for key in ("paradigm", "dim", "fields")}
        store = Store.build_from(kinds.exact(), projected(exact, dim), **same)
        yield "dimensions", f"1/{part}", store, exact.bytes_per_document * dim / exact.dim


def projected(exact: Store, dim: int) -> Iterator[tuple[list[str], Tokens]]:
    """Project token vectors onto the first `dim` principal axes, without centring or narrowing them."""
    vectors = np.asarray(exact.columns["vectors"], np.float32)
    axes = torch.from_numpy(np.linalg.eigh(vectors.T @ vectors)[1][:, -dim:].copy())
    for rows in exact.blocks(BLOCK, np.arange(len(exact.ids))):
        sample = exact.tokens(rows)
        yield exact.names(rows), replace(sample, vectors=sample.vectors @ axes @ axes.T)


def fewer(exact: Store, recipe: Recipe, split: Split, queries: Tokens) -> Rows:
    """Measure bytes, nDCG@10 and certificates for the full store and for each way to shrink it."""
    rows: Rows = []
    exact_results: list[set[str]] = []
    for kind, name, store, size in make_stores(exact):
        index = Index(store.certify(exact))
        certificates = index.certified(recipe, queries, FIRST)
        ranked = [run for run, _ in certificates]
        exact_results = exact_results or [*map(set, ranked)]
        same = [set(row) == exact_row for row, exact_row in zip(ranked, exact_results, strict=True)]
        run: Run = dict(zip(split.queries, ranked, strict=True))
        values = per_query(run, split.judgements, ["nDCG@10"]).values["nDCG@10"]
        sure = [certified for _, certified in certificates]
        row = {"kind": kind, "way": name, "documents": len(exact), "queries": len(certificates)}
        row |= {"bytes/document": size, "nDCG@10": values.tolist()}
        row |= {"error": float(index.store.errors.mean(0)[0]), "certified": sum(sure), "unchanged": sum(same)}
        violations = sum(c and not s for c, s in zip(sure, same, strict=True))
        rows.append(row | {"violations": violations})
    return rows


def described(results: Mapping[str, Rows]) -> dict[str, Section]:
    errors = (
        "error: distance of a document's worst token to the nearest stored one, mean over documents. "
        "violations: certificates of first tens that are others."
    )
    shares = (
        f"Share of the exact first {FIRST} among the first {CANDIDATES} by encodings; predicted from angles "
        "alone, by the law for independent tokens."
    )
    rows = {part: [*map(with_intervals, part_rows)] for part, part_rows in results.items()}
    return {
        "ways": ways(results["fewer"]),
        "same_bytes": same_bytes(results["fewer"]),
        "recalls": recalls(results["law"]),
        "fewer": Section("Fewer bytes", errors, rows["fewer"]),
        "law": Section("Predicted recall", shares, rows["law"]),
    }


def with_intervals(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the lists of per-query values in a row by their mean and 95% interval over queries."""
    return {
        k: interval_text(seeds_interval(np.array([v]))) if isinstance(v, list) else v for k, v in row.items()
    }


def law(exact: Store, queries: Tokens) -> Rows:
    """Predict and measure the recall of the exact top ten among the first CANDIDATES that encodings find.

    Vectors are measured in three forms: unchanged; with a mean of norm MEAN added in an extra dimension,
    which does not change the order by MaxSim; and with this mean added, then subtracted from documents and,
    for the planes only, from queries.
    """
    count = min(DOCUMENTS, len(exact))
    documents = exact.tokens(np.arange(count))
    queries = queries[:QUERIES]
    pad = torch.nn.functional.pad
    moved = [replace(t, vectors=pad(t.vectors, (0, 1), value=MEAN)) for t in (documents, queries)]
    cases = {
        "raw": (documents, queries, None),
        f"mean of norm {MEAN:g} added": (*moved, None),
        "mean added, then centred": (*moved, moved[0].vectors[moved[0].mask].mean(0)),
    }
    rows: Rows = []
    for case, (D, Q, centre) in cases.items():
        for planes in (2, 4, 6):
            means, variances, largest = moments(D, Q, centre, planes)
            for repetitions in (1, 4, 16):
                each = zip(means, variances, largest, strict=True)
                expected = [expected_recall(m, v, repetitions, b, CANDIDATES) for m, v, b in each]
                recalls = []
                for seed in range(16 // repetitions):
                    encoding = FixedEncoding(planes, repetitions, inner=0, seed=seed)
                    scores = encoding.queries(Q, centre) @ encoding.documents(D, centre).T
                    top = scores.topk(min(CANDIDATES, count)).indices.numpy()
                    recalls.append([np.isin(b, t).mean() for b, t in zip(largest, top, strict=True)])
                row = {"vectors": case, "planes": planes, "repetitions": repetitions, "documents": count}
                row |= {"queries": len(largest), "predicted": float(np.mean(expected))}
                rows.append(row | {"measured": np.mean(recalls, 0).tolist()})
    return rows


def moments(
    D: Tokens, Q: Tokens, centre: torch.Tensor | None, planes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means and variances of one repetition's scores, [b, n], and the exact top ten, [b, 10]."""
    zero = torch.zeros(D.vectors.shape[-1]) if centre is None else centre
    means, variances, exact = (np.zeros((len(Q.mask), D.mask.shape[1])) for _ in range(3))
    for b, n in np.ndindex(*means.shape):
        d = (D.vectors[0, n][D.mask[0, n]] - zero).double()
        q = Q.vectors[b, 0][Q.mask[b, 0]].double()
        S = (d @ q.T).numpy()
        unit = [torch.nn.functional.normalize(t, dim=-1) for t in (d, q - zero)]
        A = expected_shares(np.arccos((unit[0] @ unit[1].T).clamp(-1, 1).numpy()), planes)
        mean = (A * S).sum(0)
        means[b, n] = mean.sum()
        variances[b, n] = ((A * S**2).sum(0) - mean**2).sum()
        exact[b, n] = S.max(0).sum()
    return means, np.maximum(variances, 0), np.argsort(-exact, 1)[:, :FIRST]


# Averages over collections are macro-averages; intervals (95%) resample the queries within each collection.


def by(rows: Rows, *keys: str) -> dict[tuple[Any, ...], Rows]:
    """Group rows by the values of `keys`, in order."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def joined(rows: Rows, key: str, minus: Rows | None = None) -> PerQuery:
    """Join values, one per query, over collections. minus: rows of the same queries, to subtract."""
    values = np.concatenate([row[key] for row in rows])
    if minus is not None:
        values = values - np.concatenate([row[key] for row in minus])
    collections = [row["collection"] for row in rows for _ in row[key]]
    return PerQuery([*map(str, range(len(values)))], {key: values}, groups=collections)


def average(rows: Rows, key: str, minus: Rows | None = None) -> str:
    """Format the mean of `joined` with its interval."""
    return interval_text(joined(rows, key, minus).intervals()[key], "" if minus is None else "+")


def mean(rows: Rows, key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def share(rows: Rows, reference: Rows) -> float:
    """Return the mean over collections of a document's bytes relative to all tokens in float16."""
    return float(np.mean([row[BYTES] / one[BYTES] for row, one in zip(rows, reference, strict=True)]))


def ways(rows: Rows) -> Section:
    """Make the table of nDCG@10, its difference from all tokens, and certificates, for each way to store."""
    groups = by(rows, "kind", "way")
    all_tokens = next(iter(groups.values()))
    table: Rows = []
    for (kind, way), stored in groups.items():
        row = {"kind": kind, "way": way, "bytes, of all": f"{share(stored, all_tokens):.0%}"}
        row |= {NDCG: average(stored, NDCG)}
        row |= {"minus all tokens": "–" if stored is all_tokens else average(stored, NDCG, all_tokens)}
        row |= {"error": mean(stored, "error")}
        counts = ("unchanged", "certified", "violations")
        table.append(row | {count: sum(one[count] for one in stored) for count in counts})
    queries = sum(row["queries"] for row in all_tokens)
    text = (
        "Means over collections. error: distance of a document's worst token to the nearest stored one. "
        f"unchanged: of {queries} queries, those whose first ten documents are the same as with all tokens; "
        "certified: those for which a bound on the error proves it; violations: certified and not the same."
    )
    return Section("Fewer bytes, over collections", text, table)


def same_bytes(rows: Rows) -> Section:
    """Make the table of differences between two ways to store documents in the same bytes."""
    groups = by(rows, "kind", "way")
    all_tokens = next(iter(groups.values()))
    table: Rows = []
    p_values = []
    for a, b in PAIRS:
        if not {a, b} <= groups.keys():
            continue
        sizes = share(groups[a], all_tokens), share(groups[b], all_tokens)
        if max(sizes) < SAME * min(sizes):
            difference = joined(groups[a], NDCG, groups[b]).weighted(NDCG)
            p_values.append(paired_test(difference, np.zeros(len(difference))))
            row = {"kind, way": ", ".join(a), "minus": ", ".join(b)}
            row |= {"bytes, of all": f"{sizes[0]:.0%} and {sizes[1]:.0%}"}
            table.append(row | {f"difference of {NDCG}": average(groups[a], NDCG, groups[b])})
    for row, p in zip(table, holm(p_values), strict=True):
        row["p (Holm)"] = p
    text = "Means over collections; paired tests, which are one family."
    return Section("Two ways with the same bytes", text, table)


def recalls(rows: Rows) -> Section:
    """Make the table of predicted and measured recall, with two columns for each form of the vectors."""
    table: Rows = []
    for (planes, repetitions), of_planes in by(rows, "planes", "repetitions").items():
        row: dict[str, Any] = {"planes": planes, "repetitions": repetitions}
        for (form,), of_form in by(of_planes, "vectors").items():
            row[f"{form}: predicted"] = mean(of_form, "predicted")
            row[f"{form}: measured"] = average(of_form, "measured")
        table.append(row)
    return Section("Predicted recall, over collections", "Means over collections.", table)
