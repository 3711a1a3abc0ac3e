"""experiments/alignment_adaptation.py and salience_pruning.py: measures and planted claims."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from papers.qian2022.adaptation_claims import MEASURED, Task, study
from papers.qian2022.pruning_claims import COSTS, ON_DEV, PruningStudy
from studies.alignment_view import words as words_of
from studies.gains import DEV
from studies.model_runs import some_queries

from paradigms import PARADIGMS, Paradigm
from paradigms.data import load_collection
from paradigms.evaluate import PerQuery, per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED, YES
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from tests.experiments.scripts import unmeasured, verdicts

NAMES = list(MEASURED)


def adapted(name: str, own: str, means: list[float], bm25: float = 0.1, kept: Sequence[int] = (30,)) -> Task:
    """One model whose strategies have the given `means`; all other strategies are poor."""
    random = np.random.default_rng(len(name))
    base = random.random(200) * 0.2
    means = means + [0.1] * (len(NAMES) - len(means))
    values = {s: base + mean + random.normal(0, 0.05, 200) for s, mean in zip(NAMES, means, strict=True)}
    model = {"collection": name, "trained_with": own, "origin": "", "values": values}
    model |= {"several": dict.fromkeys(NAMES, 0.5), "bm25": np.full(200, bm25)}
    model |= {DEV: {"untrained": [0.1, 0.2] * 8, "trained": [0.3, 0.35] * 8}}
    return Task([model | {"kept step": step} for step in kept], [8, 16])


def adaptation_words(*tasks: Task) -> dict[str, str]:
    hits = verdicts(study(tasks), "qian2022", "adaptation")
    return {verdict.claim.quantity.removeprefix("nDCG@10: "): verdict.word for verdict in hits}


LIKE_THE_PAPER = [0.70, 0.69, 0.65, 0.61, 0.56, 0.71, 0.69, 0.67, 0.63]
FLAT = [0.5] + [0.4] * 8
GAIN = [0.3, 0.4, 0.5, 0.6, 0.7, 0.3, 0.3, 0.3, 0.3]


def test_planted_effects_of_adaptation_get_their_verdicts() -> None:
    tasks = [
        adapted("scifact", "k=1", LIKE_THE_PAPER),
        adapted("nfcorpus", "k=1", GAIN),
        adapted("squad_v1_dev", "k=1", FLAT),
        adapted("scifact", "k=4", [0.5] * 9),
        adapted("nfcorpus", "k=4", [0.1] * 9),
    ]
    assert len(unmeasured(study(tasks), "qian2022", "adaptation")) == 2  # zero-shot, entropic
    hits = adaptation_words(*tasks)

    def contrast(name: str, a: str, b: str) -> str:
        return hits[f"{name}, trained with k=1, {a} − {name}, trained with k=1, {b}"]

    assert contrast("scifact", "k=1", "k=8") == REPRODUCED
    assert contrast("nfcorpus", "k=1", "k=8") == CONTRADICTED
    assert contrast("squad_v1_dev", "k=1", "k=2") == REPRODUCED
    gain = "nfcorpus, trained with k=1, gain by adapting with 16 examples"
    assert hits[gain] == YES  # a control: the paper's sentence cannot fail
    pair = "{0}, trained with k=1, default − {0}, trained with k=4, default"
    assert hits[pair.format("scifact")] == REPRODUCED


@pytest.mark.parametrize(("bm25", "kept"), [(1.7, [30]), (0.1, [30, 0])])
def test_a_model_that_has_not_learned_is_not_heard(bm25: float, kept: list[int]) -> None:
    poor = adapted("scifact", "k=1", LIKE_THE_PAPER, bm25=bm25, kept=kept)
    assert set(adaptation_words(poor).values()) == {UNDECIDED}


MANY = 1500  # in which a loss that none of them shows is below the margins


def test_a_point_is_what_searching_and_reranking_give(finished: Callable[[str], Path], words: Path) -> None:
    """Its multiply-adds count the tokens that are kept."""
    results, data = finished("salience_pruning") / "results", load_collection(words)
    paradigm = Paradigm.from_pretrained(results / "entropic-0" / "checkpoint")
    test = some_queries(data.split("test"), 0)
    index = Index(Store.build(kinds.exact(), paradigm, data.corpus.ids, data.corpus))
    pruned = Index(index.store.copy(kinds.exact(), keep=0.2))
    hits = Indexed(pruned, paradigm, keep=0.3).search(test.queries, 8)
    result = json.loads((results / "entropic-0" / "values.json").read_text())
    (point,) = (p for p in result["points"] if (p["query_keep"], p["document_keep"]) == (0.3, 0.2))
    for stage, of_stage in (
        ("pruned", hits),
        ("refined", Indexed(index, paradigm).rerank(test.queries, hits)),
    ):
        measured = per_query(of_stage, test.judgements, ("RR@10", "nDCG@10")).values
        assert {name: value.tolist() for name, value in measured.items()} == point[stage]
    lengths = [int(paradigm.encode_queries([q]).mask.sum()) for q in test.queries.values()]
    searching = sum(-(-3 * length // 10) for length in lengths) / len(lengths)
    expected = searching * int(pruned.store.offsets[-1]) * paradigm.encoder.dim
    assert point["search multiply-adds/query"] == pytest.approx(expected)


def planted(
    levels: dict[str, float], bm25: float = 0.2, kept: int = 30, flat: str = "", relative: float = 0.05
) -> dict[str, str]:
    """Verdicts where every pruned model's values are about its level, and each unpruned one's about .5.

    flat: method whose gate has the deviation `relative`.
    """
    pairs = [(1.0, 1.0), (0.5, 1.0), (0.5, 0.4), (0.5, 0.2), (0.5, 0.1), (0.5, 0.05), (0.3, 0.4), (0.3, 0.2)]
    random = np.random.default_rng(0)

    def point(pair: tuple[float, float], level: float) -> dict[str, Any]:
        values = (0.5 if pair == (1.0, 1.0) else level) + random.normal(0, 1e-3, MANY)
        hits = {"RR@10": values.tolist(), "nDCG@10": values.tolist()}
        costs = dict.fromkeys(COSTS, 1.0)
        return {"query_keep": pair[0], "document_keep": pair[1], "refined": hits, "pruned": hits} | costs

    results: list[dict[str, Any]] = [
        {"method": method, "seed": 0, "points": [point(pair, level) for pair in pairs]}
        | {ON_DEV: [level] * len(pairs)}
        for method, level in levels.items()
    ]
    strategies = {f"k={k}": (0.3 + 0.1 * k + random.normal(0, 1e-3, MANY)).tolist() for k in (1, 2)}
    words = {side: random.normal(0.2, 0.01, MANY).tolist() for side in ("documents", "queries")}
    results[0] |= {"strategies": strategies, "content words": words, "kept step": kept}
    for result in results:
        deviation = relative if result["method"] == flat else 0.5
        gate = {"mean": 1.0, "deviation": deviation, "relative": deviation, "sparsity": 0.0}
        result |= {} if result["method"] == "none" else {"gate": gate}
    results[0] |= {DEV: {"untrained": [0.1, 0.2] * 8, "trained": [0.3, 0.35] * 8}}
    lexical = PerQuery([f"q{n}" for n in range(MANY)], {"RR@10": np.full(MANY, bm25)})
    study = PruningStudy(results, (0.5, 0.4), lexical).study()
    assert len(unmeasured(study, "qian2022", "pruning")) == 3  # β^q = 10%, IDF and random
    return {v.claim.statement: v.word for v in verdicts(study, "qian2022", "pruning")}


def test_planted_effects_of_pruning_get_their_verdicts() -> None:
    good = {"entropic": 0.495, "relu": 0.49, "hard": 0.4, "l1-1": 0.495, "none": 0.3}
    hits = planted(good)
    starts = ("pruned “at", "the model “rem", "pruning 80%", "β^d = 20%", "β^q = 30%", "the hard")
    for start in (*starts, "the constraint", "important noun", "alignment adaptation"):
        assert [w for s, w in hits.items() if s.startswith(start)] == [REPRODUCED], start
    worse = planted(good | {"entropic": 0.35})
    for start in (*starts[:4], "the hard"):
        assert [w for s, w in worse.items() if s.startswith(start)] == [CONTRADICTED], start
    assert not any(s.startswith("β^q = 10%") for s in hits)  # not measured
    l1 = ("with a proper", "L1 is")
    assert {w for s, w in (hits | worse).items() if s.startswith(l1)} == {UNDECIDED}  # of one coefficient
    for level, word in ((0.495, REPRODUCED), (0.3, CONTRADICTED)):  # dev queries choose the better one
        several = planted(good | {"l1-1": level, "l1-10": 0.2})
        assert [w for s, w in several.items() if "L1 performs" in s] == [word]
    assert set(planted(good, bm25=1.1).values()) == {UNDECIDED}
    untrained = planted(good, kept=0)  # the gated model; claims about the others are tested
    assert {s.split()[0] for s, word in untrained.items() if word != UNDECIDED} == {"a"}
    assert planted(good, flat="entropic", relative=0.11) == hits
    flat = planted(good, flat="entropic")
    assert {s.split()[0] for s, word in flat.items() if word != UNDECIDED} == {"a"}  # of ReLU's gate


QUERY = "zebra bird over the sea"  # the tiny vocabulary knows no zebra: at least five pieces


def build(backbone: Path, **options: object) -> Paradigm:
    torch.manual_seed(0)
    paradigm = PARADIGMS["aligner"](backbone, dim=16, query_length=24, document_length=48, **options)
    if paradigm.encoder.salience_heads is not None:
        for head in paradigm.encoder.salience_heads.values():
            torch.nn.init.normal_(head.weight)
    return paradigm


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_pieces_become_words_again(family: str, checkpoints: dict[str, Path]) -> None:
    """## marks a piece that continues, ▁ one that begins."""
    paradigm = build(checkpoints[family], salience="none")
    hits = words_of(paradigm, QUERY, "query", paradigm.encode_queries([QUERY]).mask[0, 0])
    assert [word for word, _ in hits] == QUERY.split()
    assert len(hits[0][1]) >= 5
    places = [place for _, of in hits for place in of]
    assert places == sorted(set(places))
    labels = paradigm.encoder.labels(QUERY, "query")
    assert {labels[n] for n in range(len(labels)) if n not in places} <= {"[CLS]", "[SEP]", "</s>"}
