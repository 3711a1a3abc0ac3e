"""How does ALIGNER's nDCG@10 depend on the share of tokens kept by salience? Qian et al. 2022, Fig. 6, 7.

The script trains ALIGNER once for each way to make salience sparse and each seed, stores a share β^d of each
document's tokens, searches with a share β^q of each query's tokens, and rescores the retrieved documents with
all vectors. It reports bytes, milliseconds and multiply-adds, which words are salient (§4.4), and the effect
of adapting the alignment after pruning. The full model has no salience. Methods, coefficients and seeds may
be added to a results folder.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from studies.settings import CollectionName, EncoderStudy, check_names, different, launch, lengths_of

from paradigms.io.command_line import flags


@flags(query_length=48)
class Settings(EncoderStudy, CollectionName):
    """Settings for the ALIGNER models, their collection, and the shares of tokens to keep."""

    methods: list[str] = field(
        default_factory=lambda: ["entropic", "relu", "hard", "l1", "none", "idf", "random"]
    )
    """any of entropic, relu, hard, l1, and none (no salience, the paper's full model, pruned to first
    tokens), whose tokens idf and random choose by IDF and at random"""
    l1: list[float] = field(default_factory=lambda: [0.1, 1.0, 10.0])
    """coefficients γ of the mean salience in the loss of the method l1, a model for each. Claims are about
    the γ whose pruned searches have the highest RR@10 on dev queries"""
    depth: int = 100
    """documents per query that the pruned search retrieves and the refinement rescores"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self, "methods", [*METHODS, "l1", *CHOICES])
        if {*CHOICES} & {*self.methods} and "none" not in self.methods:
            raise SystemExit("methods: idf and random prune the model of none, which is missing")
        different(self, "l1")
        if min(self.l1) <= 0:
            raise SystemExit(f"l1 must list coefficients above 0, got {self.l1}")


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

import numpy as np
import torch
from bm25s.stopwords import STOPWORDS_EN_PLUS
from papers.lee2023.token_measures import stored_ids
from papers.qian2022.adaptation_claims import STRATEGIES
from papers.qian2022.pruning_claims import L1, MEASURES, ON_DEV, SALIENT_IN, PruningStudy
from scipy.stats import rankdata
from studies.alignment_view import words
from studies.model_runs import Job, StudyData, bind, encoder_job, open_study, run_jobs, values_of
from studies.pages import Measured, publish, resampled

from paradigms import Paradigm
from paradigms.aligner import EPS, aligner
from paradigms.core import Tokens
from paradigms.data import Corpus, Run, Split
from paradigms.encoder.text import Side
from paradigms.evaluate.gate import measure_gate
from paradigms.find import Index, kinds
from paradigms.retrieve import Indexed, union
from paradigms.store import Store
from paradigms.store.pruning import most_salient
from paradigms.train.script import begin

METHODS = ("entropic", "relu", "hard", "none")  # none is the control: pruning truncates texts
BLOCK = 100_000  # padded tokens pruned at once
CHOICES = ("idf", "random")  # how the model without salience may choose its tokens, instead of the first
RATIOS = {"query_ratio": 0.5, "document_ratio": 0.4}  # α^q and α^d in training
FIGURE_7 = (0.5, 0.2)  # (β^q, β^d) in the text about Figure 7, with β^q as trained
# Measured (β^q, β^d): no pruning, each ratio with the other as trained, and Figure 7.
PAIRS = [(1.0, 1.0), *((0.5, d) for d in (1.0, 0.6, 0.4, 0.2, 0.1, 0.05))]
PAIRS += [*((q, 0.4) for q in (1.0, 0.3, 0.1)), (0.3, 0.2)]
FUNCTION_WORDS = frozenset(STOPWORDS_EN_PLUS)  # articles, pronouns, prepositions, conjunctions, auxiliaries


def main(settings: Settings) -> None:
    accelerator, console = begin(settings)
    data = open_study(settings, accelerator, console)
    bound = RATIOS | {"fingerprint": data.collection.fingerprint, "eps": EPS, "chosen by": ON_DEV}
    bind(settings, accelerator, ("methods", "seeds", "l1"), ("backbone",), **bound)
    models: dict[str, dict[str, Any]] = {}
    for method in sorted(settings.methods, key=CHOICES.__contains__):  # these read the checkpoint of none
        for gamma in settings.l1 if method == "l1" else ():
            models[f"{L1}{gamma:g}"] = {"salience": "relu", "salience_l1": gamma}
        if method != "l1":
            models[method] = {"salience": method}
    jobs = [job(*model, seed, data) for seed in settings.seeds for model in models.items()]
    results = run_jobs(jobs, settings, accelerator, console)
    if accelerator.is_main_process:
        ratios = (RATIOS["query_ratio"], RATIOS["document_ratio"])
        pruning = PruningStudy(results, ratios, data.lexical(MEASURES))
        summary = (
            f"Seeds {settings.seeds}, {settings.steps} steps of {settings.batch_size} queries from "
            f"{settings.backbone}, ε = {EPS:g} (the paper: .002); intervals (95%) resample "
            f"{resampled(len(settings.seeds))}."
        )
        title = f"Pruning by salience on {data.collection.name}"
        publish(settings, title, summary, pruning.sections(), accelerator)
    accelerator.end_training()


def job(method: str, salience: dict[str, Any], seed: int, data: StudyData) -> Job:
    settings: Settings = data.settings

    def make() -> Paradigm:
        options = lengths_of(settings) | RATIOS | salience
        return aligner(settings.backbone, **options)

    def measure_model(paradigm: Paradigm, index: Index) -> Measured:
        keys = {"method": method, "seed": seed}
        return keys | measure(paradigm, index, data, method)

    output = Path(settings.output)
    checkpoint = output / f"none-{seed}" / "checkpoint" if method in CHOICES else None
    name = f"{method}, seed {seed}"
    folder = output / f"{method}-{seed}"
    return encoder_job(name, folder, seed, make, measure_model, data, checkpoint=checkpoint)


def chosen(tokens: Tokens, weights: np.ndarray, ratio: float) -> Tokens:
    """Keep a share of each text's tokens, those with the largest weights. weights: one per unmasked token."""
    salience = torch.zeros(tokens.mask.shape)
    salience[tokens.mask.cpu()] = torch.from_numpy(weights - weights.min()).float()  # from 0
    weighted = replace(tokens, salience=salience.to(tokens.vectors.device))
    return replace(most_salient(weighted, ratio), salience=None)


def pruned_by(
    method: str, paradigm: Paradigm, index: Index, corpus: Corpus
) -> tuple[dict[float, Index], Callable[[Tokens, Sequence[str], float], Tokens]]:
    """Return the index by share of tokens kept, and a function that prunes encoded queries alike."""
    store = index.store
    shares = {d for _, d in PAIRS} - {1.0}
    if method not in CHOICES:
        pruned = {d: Index(store.copy(kinds.exact(), keep=d)) for d in shares}
        return pruned | {1.0: index}, lambda queries, texts, q: most_salient(queries, q)
    ids = stored_ids(paradigm, index, corpus)
    counts = paradigm.count_corpus(corpus).frequencies.numpy()  # documents with each token
    random = np.random.default_rng(0)

    def weights(ids: np.ndarray) -> np.ndarray:
        return random.random(len(ids)) if method == "random" else -np.log(np.maximum(1, counts[ids]))

    def parts(d: float, every: np.ndarray) -> Iterator[tuple[list[str], Tokens]]:
        for rows in store.blocks(BLOCK, np.arange(len(store))):
            span = slice(store.offsets[rows[0]], store.offsets[rows[-1] + 1])
            yield store.names(rows), chosen(store.tokens(rows), every[span], d)

    def of_queries(queries: Tokens, texts: Sequence[str], q: float) -> Tokens:
        batch = paradigm.encoder.tokenize(list(texts), "query")
        return chosen(queries, weights(batch.input_ids[batch.counts].numpy()), q)

    every = weights(ids)
    build = partial(Store.build_from, kinds.exact(), paradigm=paradigm.name, dim=store.dim)
    return {d: Index(build(parts(d, every))) for d in shares} | {1.0: index}, of_queries


def content_words(
    paradigm: Paradigm, index: Index, data: StudyData, queries: Tokens
) -> dict[str, list[float]]:
    """Measure how far salience ranks content words above function words, in queries and relevant documents.

    For each query and its first relevant document, the advantage is the difference of the mean ranks of the
    two kinds, divided by the text's number of tokens. It is 0 if one of the two kinds is missing.
    """
    advantages: dict[str, list[float]] = {side: [] for side in SALIENT_IN}
    test = data.test
    corpus = data.collection.corpus
    places = {query: n for n, query in enumerate(test.queries)}
    for name, judged in test.judgements.items():
        relevant = [d for d, grade in judged.items() if grade > 0]
        if not relevant:
            continue
        n = places[name]
        row = index.store.position(relevant[0])
        assert queries.salience is not None
        of_query = queries.salience[n, 0][queries.mask[n, 0]].cpu().numpy()
        of_document = index.store.columns["salience"][slice(*index.store.offsets[row : row + 2])]
        text = corpus[corpus.position(relevant[0])]
        advantages["queries"].append(advantage(of_query, word_kinds(paradigm, test.queries[name], "query")))
        advantages["documents"].append(advantage(of_document, word_kinds(paradigm, text, "document")))
    return advantages


def word_kinds(paradigm: Paradigm, text: str, side: Side) -> np.ndarray:
    """Return the class of each scored token: 1 in a content word, 0 in a function word, −1 otherwise."""
    (counts,) = paradigm.encoder.tokenize([text], side).counts
    kinds = np.full(len(counts), -1)
    for word, places in words(paradigm, text, side, counts):
        if word.isalpha():
            kinds[places] = word.lower() not in FUNCTION_WORDS
    return kinds[counts.numpy()]


def advantage(salience: np.ndarray, kinds: np.ndarray) -> float:
    """Return content words' mean rank minus function words' mean rank, divided by the text's length."""
    if not (kinds == 1).any() or not (kinds == 0).any():
        return 0.0
    ranks = rankdata(salience) / len(salience)
    return float(ranks[kinds == 1].mean() - ranks[kinds == 0].mean())


def measure(paradigm: Paradigm, index: Index, data: StudyData, method: str) -> Measured:
    """Measure costs and results for each pair: the shares of query tokens and of document tokens kept.

    Each query's results are measured before and after refinement, which rescores the retrieved documents with
    all tokens. A model with salience is also measured on content words. With the entropic gate, the results
    of the pair in Figure 7 of Qian et al. 2022 are refined with every alignment.
    """
    settings: Settings = data.settings
    test = data.test
    count = max(1, len(test.queries))
    queries = paradigm.encode_queries(list(test.queries.values()))
    pruned, prune = pruned_by(method, paradigm, index, data.collection.corpus)

    def searched(split: Split, encoded: Tokens) -> Iterator[tuple[Measured, Run]]:
        """Yield the costs and the run of each pair."""
        texts = list(split.queries.values())
        shares = {q: prune(encoded, texts, q) for q in {q for q, _ in PAIRS}}
        for q, d in PAIRS:
            began = time.perf_counter()
            ranked = pruned[d].search_tokens(paradigm.recipe, shares[q], settings.depth)
            seconds = time.perf_counter() - began
            tokens = int(shares[q].mask.sum())
            store = pruned[d].store
            cost = {
                "query_keep": q,
                "document_keep": d,
                "bytes/document": store.bytes_per_document,
                "search ms/query": 1000 * seconds / count,
                "search multiply-adds/query": tokens / count * int(store.offsets[-1]) * store.dim,
            }
            yield cost, dict(zip(split.queries, ranked, strict=True))

    points, runs = map(list, zip(*searched(test, queries), strict=True))
    for point, run, refined in zip(points, runs, refine(runs, paradigm, index, test), strict=True):
        point |= {"pruned": values_of(run, test, MEASURES), "refined": values_of(refined, test, MEASURES)}
    dev = data.dev_sample
    dev_runs = [run for _, run in searched(dev, paradigm.encode_queries(list(dev.queries.values())))]
    refined_on_dev = refine(dev_runs, paradigm, index, dev)
    on_dev = [float(np.mean(values_of(run, dev, ["RR@10"])["RR@10"])) for run in refined_on_dev]
    adapted = {}
    if method == "entropic":
        recipes = [paradigm.with_alignment(align).recipe for align in STRATEGIES.values()]
        run = runs[PAIRS.index(FIGURE_7)]
        reranked = Indexed(index, paradigm).rankings(test.queries, run, recipes)
        values = (values_of(each, test, MEASURES[1:])["nDCG@10"] for each in reranked)
        adapted = dict(zip(STRATEGIES, values, strict=True))
    more: Measured = {}
    if "salience" in index.store.columns:
        gate = measure_gate(index.store.columns["salience"], index.store.offsets)
        more = {"gate": asdict(gate), "content words": content_words(paradigm, index, data, queries)}
    return more | {ON_DEV: on_dev, "strategies": adapted, "points": points}


def refine(runs: Sequence[Run], paradigm: Paradigm, index: Index, split: Split) -> list[Run]:
    """Rescore each run with all tokens: one pass over all candidates, so that runs share their scores."""
    scores = Indexed(index, paradigm).rerank(split.queries, union(*runs))
    return [
        {name: {d: scores[name][d] for d in documents} for name, documents in run.items()} for run in runs
    ]
