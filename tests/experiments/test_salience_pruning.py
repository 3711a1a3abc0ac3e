"""experiments/salience_pruning.py: what it counts, and verdicts on planted numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import salience_pruning
import torch
from papers.qian2022.pruning_claims import COSTS, ON_DEV, PruningStudy
from studies.model_runs import DEV

from paradigms import PARADIGMS
from paradigms.core import Tokens
from paradigms.data import load_collection
from paradigms.evaluate import PerQuery
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from paradigms.find import Index, Store, kinds
from tests.experiments.scripts import around, dev_values, unmeasured, verdicts
from tests.near import assert_same

QUERIES = 1500  # in which a loss that none of them shows is below the margins


def test_tokens_are_chosen_by_their_weights() -> None:
    tokens = Tokens(
        torch.arange(6.0).view(1, 2, 3, 1), torch.tensor([[[True, True, True], [True, True, False]]])
    )
    kept = salience_pruning.chosen(tokens, np.array([-3.0, -1.0, -2.0, -5.0, -4.0]), 0.5)
    assert kept.vectors[kept.mask].flatten().tolist() == [1, 2, 4]
    assert kept.salience is None, "rel must not weigh tokens by what chose them"
    advantage = salience_pruning.advantage(np.array([0.1, 0.9, 0.5, 0.5]), np.array([0, 1, 0, -1]))
    assert advantage == pytest.approx(1 - (0.25 + 0.625) / 2)


def test_retrieved_tokens_are_counted_in_their_documents(words: Path, tiny_bert: Path) -> None:
    torch.manual_seed(0)
    paradigm, data = PARADIGMS["aligner"](tiny_bert, salience="none"), load_collection(words)
    index = Index(Store.build(kinds.exact(), paradigm, data.corpus.ids, data.corpus))
    queries = paradigm.encode_queries(list(data.split("test").queries.values()))
    tokens = index.store.tokens_of(index.store.ids)
    scores = queries.vectors[:, 0][queries.mask[:, 0]] @ tokens.vectors[0][tokens.mask[0]].T
    hits = scores.topk(10).indices.unique().tolist()
    lengths = np.diff(index.store.offsets)
    shares = np.bincount(np.repeat(np.arange(40), lengths)[hits], minlength=40) / lengths
    assert_same(salience_pruning.retrieved_share(index, queries), shares.mean())


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
    strategies = {f"k={k}": around(level, QUERIES) for k, level in ((1, 0.4), (2, 0.5))}
    words = {side: around(0.2, QUERIES) for side in ("documents", "queries")}
    results[0] |= {"strategies": strategies, "content words": words, "kept step": kept}
    for result in results:
        deviation = relative if result["method"] == flat else 0.5
        gate = {"mean": 1.0, "deviation": deviation, "relative": deviation, "sparsity": 0.0}
        result |= {} if result["method"] == "none" else {"gate": gate}
    results[0] |= {DEV: dev_values() if moved else {}}
    lexical = PerQuery([f"q{n}" for n in range(QUERIES)], {"RR@10": np.full(QUERIES, bm25)})
    study = PruningStudy(results, (0.5, 0.4), lexical).study()
    lacking = unmeasured(study, "qian2022", "pruning")
    assert [side for text in lacking for side in ("β^q = 10%", "IDF", "random") if side in text] == [
        "β^q = 10%",
        "IDF",
        "random",
    ]
    return {v.claim.statement: v.word for v in verdicts(study, "qian2022", "pruning")}


GOOD = {"entropic": 0.495, "relu": 0.49, "hard": 0.4, "l1-1": 0.495, "none": 0.3}


def test_planted_effects_get_their_verdicts() -> None:
    found = planted(GOOD)
    starts = ("pruned “at", "the model “rem", "pruning 80%", "β^d = 20%", "β^q = 30%", "the hard")
    for start in (*starts, "the constraint", "important noun", "alignment adaptation"):
        assert [w for s, w in found.items() if s.startswith(start)] == [REPRODUCED], start
    worse = planted(GOOD | {"entropic": 0.35})
    for start in (*starts[:4], "the hard"):
        assert [w for s, w in worse.items() if s.startswith(start)] == [CONTRADICTED], start
    assert not any(s.startswith("β^q = 10%") for s in found)  # not measured
    assert {w for s, w in (found | worse).items() if "L1" in s} == {UNDECIDED}  # one coefficient was tried
    several = planted({"entropic": 0, "l1-10": 0.2} | GOOD)  # dev queries choose the better one
    assert [w for s, w in several.items() if "L1 performs" in s] == [REPRODUCED]
    assert [w for s, w in planted(GOOD | {"l1-1": 0.3, "l1-10": 0.2}).items() if "L1 performs" in s] == [
        CONTRADICTED
    ]
    assert set(planted(GOOD, bm25=1.1).values()) == {UNDECIDED}
    readouts = ("β^q = 30%", "a ReLU gate alone “degrades”", "alignment adaptation")
    still = planted(GOOD, moved=False)  # what is said of the gated model's training is not decided
    assert {s for s, word in still.items() if found[s] != word} == {
        s for s, word in found.items() if word != UNDECIDED and not s.startswith((*readouts, "a ReLU"))
    }
    untrained = planted(GOOD, kept=0)  # the gated model; claims about the others are tested
    assert {s.split()[0] for s, word in untrained.items() if word != UNDECIDED} == {"a"}


def test_no_verdict_rests_on_a_flat_gate() -> None:
    alive = planted(GOOD, flat="entropic", relative=0.11)
    flat = planted(GOOD, flat="entropic")
    assert alive == planted(GOOD)
    assert {s.split()[0] for s, word in flat.items() if word != UNDECIDED} == {"a"}  # of ReLU's gate
