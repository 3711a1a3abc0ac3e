"""experiments/salience_pruning.py and ALIGNER's full-scale configuration, end to end on tiny encoders."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import salience_pruning
import torch
from papers.qian2022.pruning_claims import COSTS, ON_DEV, PruningStudy
from studies.gains import DEV
from studies.model_runs import some_queries

from paradigms import Paradigm
from paradigms.core import Tokens
from paradigms.data import load_collection
from paradigms.evaluate import PerQuery, per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from tests.experiments.scripts import SMALL, published, run, unmeasured, verdicts
from tests.near import assert_same

QUERIES = 1500  # in which a loss that none of them shows is below the margins


def flags(collection: Path, backbone: Path, output: Path, **changes: object) -> dict[str, object]:
    own = {"collection": collection, "backbone": backbone, "output": output, "seeds": "[0]", "negatives": 1}
    own |= {
        "methods": '["idf", "random", "entropic", "relu", "hard", "l1", "none"]',
        "l1": "[0.5, 2]",
        "depth": 8,
    }
    return SMALL | own | {"query_length": 8, "document_length": 12, "trained_layers": 0} | changes


@pytest.fixture(scope="module")
def finished(words: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "pruning"
    run("salience_pruning", **flags(words, tiny_bert, output))
    return output


def test_every_model_and_pair_is_measured(finished: Path) -> None:
    methods = ("entropic", "relu", "hard", "l1-0.5", "l1-2", "none", "idf", "random")
    for method in methods:
        result = json.loads((finished / f"{method}-0" / "values.json").read_text())
        assert len({(point["query_keep"], point["document_keep"]) for point in result["points"]}) == 11
        size = {point["document_keep"]: point["bytes/document"] for point in result["points"]}
        assert [size[d] for d in sorted(size)] == sorted(size.values())
        if method in salience_pruning.CHOICES:
            continue
        saved = Paradigm.from_pretrained(finished / f"{method}-0" / "checkpoint").encoder.settings
        assert saved.salience_l1 == {"l1-0.5": 0.5, "l1-2": 2}.get(method, 0)
    gates = json.loads((finished / "gates.json").read_text())
    assert [row["method"] for row in gates] == ["entropic", "relu", "hard", "L1, γ = 0.5", "L1, γ = 2"]
    assert all(row["deviation"] >= 0 and 0 <= row["sparsity"] <= 1 for row in gates)
    tables = {"document_tokens", "query_tokens", "costs"}
    assert tables <= published(finished)
    rows = json.loads((finished / "claims.json").read_text())
    saved = {row["quantity"]: row["measured"] for row in rows if row["sample"] == "counted"}
    told = [f"{what} saved at β^q = 30%, β^d = 20%" for what in ("bytes of the index", "multiply-adds")]
    retrieved = "tokens that 10 queries retrieve, of the most retrieved documents"
    assert list(saved) == [*told, retrieved]
    share = json.loads((finished / "none-0" / "values.json").read_text())["retrieved"]
    assert saved[retrieved] == f"{share:.1%}"
    untested = [row["claim"] for row in rows if row["verdict"] == "not tested: this run has not measured it"]
    assert untested == ["alignment adaptation “can be combined with pruning”"]  # ten queries are too few


def test_a_point_is_what_searching_and_reranking_give(finished: Path, words: Path, tmp_path: Path) -> None:
    """Its multiply-adds count the tokens that are kept."""
    paradigm, data = Paradigm.from_pretrained(finished / "entropic-0" / "checkpoint"), load_collection(words)
    test = some_queries(data.split("test"), 0)
    index = Index(Store.build(kinds.exact(), paradigm, data.corpus.ids, data.corpus))
    pruned = Index(index.store.copy(kinds.exact(), keep=0.2))
    found = Indexed(pruned, paradigm, keep=0.3).search(test.queries, 8)
    refined = Indexed(index, paradigm).rerank(test.queries, found)
    result = json.loads((finished / "entropic-0" / "values.json").read_text())
    (point,) = (p for p in result["points"] if (p["query_keep"], p["document_keep"]) == (0.3, 0.2))
    for stage, of_stage in (("pruned", found), ("refined", refined)):
        measured = per_query(of_stage, test.judgements, ("RR@10", "nDCG@10")).values
        assert {name: value.tolist() for name, value in measured.items()} == point[stage]
    lengths = [int(paradigm.encode_queries([q]).mask.sum()) for q in test.queries.values()]
    searching = sum(-(-3 * length // 10) for length in lengths) / len(lengths)
    expected = searching * int(pruned.store.offsets[-1]) * paradigm.encoder.dim
    assert point["search multiply-adds/query"] == pytest.approx(expected)


def test_retrieved_tokens_and_salient_words_are_counted(finished: Path, words: Path) -> None:
    paradigm, data = Paradigm.from_pretrained(finished / "none-0" / "checkpoint"), load_collection(words)
    store = Store.build(kinds.exact(), paradigm, data.corpus.ids, data.corpus)
    queries = paradigm.encode_queries(list(data.split("test").queries.values()))
    tokens = store.tokens_of(store.ids)
    stored = tokens.vectors[0][tokens.mask[0]]
    owner = np.repeat(np.arange(40), np.diff(store.offsets))
    hit: list[int] = []
    for vector in queries.vectors[:, 0][queries.mask[:, 0]]:
        hit += (stored @ vector).topk(10).indices.tolist()
    shares = np.array([np.isin(np.flatnonzero(owner == n), hit).mean() for n in range(40)])
    result = json.loads((finished / "none-0" / "values.json").read_text())
    assert_same(result["retrieved"], shares.mean())
    sorts = salience_pruning.word_kinds(paradigm, "the cat is a dog", "query")
    assert sorts.tolist() == [-1, 0, 1, 0, 0, 1, -1]
    found = salience_pruning.advantage(np.array([0.1, 0.9, 0.5, 0.5]), np.array([0, 1, 0, -1]))
    assert found == pytest.approx(1 - (0.25 + 0.625) / 2)
    assert salience_pruning.advantage(np.array([0.1, 0.9]), np.array([1, 1])) == 0


def test_tokens_are_chosen_by_their_weights() -> None:
    tokens = Tokens(
        torch.arange(6.0).view(1, 2, 3, 1), torch.tensor([[[True, True, True], [True, True, False]]])
    )
    kept = salience_pruning.chosen(tokens, np.array([-3.0, -1.0, -2.0, -5.0, -4.0]), 0.5)
    assert kept.vectors[kept.mask].flatten().tolist() == [1, 2, 4]
    assert kept.salience is None, "rel must not weigh tokens by what chose them"


def planted(
    levels: dict[str, float],
    bm25: float = 0.2,
    kept: int = 30,
    moved: bool = True,
    flat: str = "",
    relative: float = 0.05,
) -> dict[str, str]:
    """Verdicts where every pruned model's values are about its level, and each unpruned one's about .5.

    flat: method whose gate has the deviation `relative`.
    """
    pairs = [(1.0, 1.0), (0.5, 1.0), (0.5, 0.4), (0.5, 0.2), (0.5, 0.1), (0.5, 0.05), (0.3, 0.4), (0.3, 0.2)]
    random = np.random.default_rng(0)

    def point(pair: tuple[float, float], level: float) -> dict[str, Any]:
        values = (0.5 if pair == (1.0, 1.0) else level) + random.normal(0, 1e-3, QUERIES)
        found = {"RR@10": values.tolist(), "nDCG@10": values.tolist()}
        costs = dict.fromkeys(COSTS, 1.0)
        return {"query_keep": pair[0], "document_keep": pair[1], "refined": found, "pruned": found} | costs

    results: list[dict[str, Any]] = [
        {"method": method, "seed": 0, "points": [point(pair, level) for pair in pairs]}
        | {ON_DEV: [level] * len(pairs)}
        for method, level in levels.items()
    ]
    strategies = {
        f"k={k}": (level + random.normal(0, 1e-3, QUERIES)).tolist() for k, level in ((1, 0.4), (2, 0.5))
    }
    words = {side: random.normal(0.2, 0.01, QUERIES).tolist() for side in ("documents", "queries")}
    results[0] |= {"strategies": strategies, "content words": words, "kept step": kept}
    for result in results:
        deviation = relative if result["method"] == flat else 0.5
        gate = {"mean": 1.0, "deviation": deviation, "relative": deviation, "sparsity": 0.0}
        result |= {} if result["method"] == "none" else {"gate": gate}
    results[0] |= {DEV: {"untrained": [0.1, 0.2] * 8, "trained": [0.3, 0.35] * 8} if moved else {}}
    lexical = PerQuery([f"q{n}" for n in range(QUERIES)], {"RR@10": np.full(QUERIES, bm25)})
    study = PruningStudy(results, (0.5, 0.4), lexical).study()
    lacking = " ".join(unmeasured(study, "qian2022", "pruning"))
    assert re.findall(r"RR@10: |IDF, mean|random, mean|β\^q = 10%", lacking) == [
        *("RR@10: ", "β^q = 10%"),
        *("RR@10: ", "IDF, mean"),
        *("RR@10: ", "random, mean"),
    ]
    return {v.claim.statement: v.word for v in verdicts(study, "qian2022", "pruning")}


def test_planted_effects_get_their_verdicts() -> None:
    good = {"entropic": 0.495, "relu": 0.49, "hard": 0.4, "l1-1": 0.495, "none": 0.3}
    found = planted(good)
    starts = (
        "pruned “at",
        "the model “rem",
        "pruning 80%",
        "β^d = 20%",
        "β^q = 30%",
        "the hard",
        "the constraint",
    )
    for start in (*starts, "important noun", "alignment adaptation"):
        assert [w for s, w in found.items() if s.startswith(start)] == [REPRODUCED], start
    worse = planted(good | {"entropic": 0.35})
    for start in (*starts[:4], "the hard"):
        assert [w for s, w in worse.items() if s.startswith(start)] == [CONTRADICTED], start
    assert not any(s.startswith("β^q = 10%") for s in found)  # not measured
    assert {w for s, w in (found | worse).items() if "L1" in s} == {UNDECIDED}  # one coefficient was tried
    several = planted({"entropic": 0, "l1-10": 0.2} | good)  # dev queries choose the better one
    assert [w for s, w in several.items() if "L1 performs" in s] == [REPRODUCED]
    assert [w for s, w in planted(good | {"l1-1": 0.3, "l1-10": 0.2}).items() if "L1 performs" in s] == [
        CONTRADICTED
    ]
    assert set(planted(good, bm25=1.1).values()) == {UNDECIDED}
    readouts = ("β^q = 30%", "a ReLU gate alone “degrades”", "alignment adaptation")
    still = planted(good, moved=False)  # what is said of the gated model's training is not decided
    assert {s for s, word in still.items() if found[s] != word} == {
        s for s, word in found.items() if word != UNDECIDED and not s.startswith((*readouts, "a ReLU"))
    }
    untrained = planted(good, kept=0)  # the gated model; claims about the others are tested
    assert {s.split()[0] for s, word in untrained.items() if word != UNDECIDED} == {"a"}


def test_no_verdict_rests_on_a_flat_gate() -> None:
    good = {"entropic": 0.495, "relu": 0.49, "hard": 0.4, "l1-1": 0.495, "none": 0.3}
    alive, flat = planted(good, flat="entropic", relative=0.11), planted(good, flat="entropic")
    assert alive == planted(good)
    assert {s.split()[0] for s, word in flat.items() if word != UNDECIDED} == {"a"}  # of ReLU's gate
    other = planted(good, flat="hard")
    assert {s for s, word in alive.items() if word != other[s]} == {s for s in other if "hard" in s}
