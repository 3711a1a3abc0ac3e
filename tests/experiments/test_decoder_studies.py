"""experiments/low_rank.py and document_encoding.py: decoders against loops, planted claims."""

from pathlib import Path

import document_encoding
import low_rank
import numpy as np
import pytest
from document_encoding import BM25, CONTROL, MEASURES, SYSTEMS
from papers.wu2024.attention import Seen, seen
from papers.wu2024.trained_pairs import TaskResults
from studies.gains import DEV

from paradigms.evaluate.claims import CONTRADICTED, NO, REPRODUCED, UNDECIDED, YES
from paradigms.generative.identifiers import Targets
from paradigms.generative.interaction import decompose
from tests.experiments.scripts import unmeasured, verdicts
from tests.near import assert_same
from tests.tiny_generative import generative, named
from theory import kernels
from theory import low_rank as lemma

QUERY, NAMES = "the quick red fox", [[20, 21, 22], [20, 23], [24, 25, 26, 27, 28]]


@pytest.mark.parametrize("family", ["t5", "t5-v1.1", "mt5"])
def test_scores_of_the_factors_are_the_decoders_own(seq2seq: dict[str, Path], family: str) -> None:
    model = generative(seq2seq[family], named(NAMES))
    sources = model.tokenize([QUERY])
    for target in (model.target(n) for n in range(3)):
        view = seen(model, QUERY, target)
        D, Q = view.projected
        S = D @ Q.swapaxes(-1, -2)
        assert S.shape == (2, 2, len(target), 5)  # layers, heads, the name and its end, the query
        W = np.einsum("lhkx,lhky->lhxy", *view.read)
        assert_same(lemma.attention_scores(view.states[:, None], view.memory, W), S)
        own = decompose(model, sources, Targets.pad([[target]]), "logit")[-1].alignment
        assert_same(lemma.alignment(S), own.reshape(S.shape))
        assert_same(view.attention, own.reshape(S.shape))
    crossing = [block.layer[1].EncDecAttention for block in model.backbone.decoder.block]
    assert not any(attention.q._forward_pre_hooks for attention in crossing)


def test_the_measures_are_the_theorys_own() -> None:
    """Of two layers of three heads that see D [5, 4] and Q [6, 4] unprojected: W_Q = W_K = 1."""
    rng = np.random.default_rng(1)
    D, Q = 2 * rng.standard_normal((5, 4)), rng.standard_normal((6, 4))
    S = lemma.attention_scores(D, Q)
    A = lemma.alignment(S)
    identity = np.broadcast_to(np.eye(4), (2, 3, 4, 4))
    view = Seen(np.broadcast_to(D, (2, 5, 4)), Q, (identity, identity), np.broadcast_to(A, (2, 3, 5, 6)))
    results = low_rank.head_measures(view, low_rank.weight_norm(view), rng)
    best, error = lemma.best_rank_one(A)
    product = kernels.elu(D) @ kernels.elu(Q).T
    others = [product / product.sum(1, keepdims=True), product / np.exp(S).sum(1)[:, None]]
    printed = np.broadcast_to(D.mean(0) @ (Q - Q.mean(0)).T, A.shape)
    expected = {
        "best_error": error,
        "printed_error": np.linalg.norm(A - printed) / np.linalg.norm(A),
        "stable_rank": lemma.stable_rank(A),
        "second": np.linalg.norm(A - best, 2),
        "printed_row_error": lemma.row_norm(A - printed),
        "elu_error": min(abs((S * other).sum() / kernels.relevance(D, Q) - 1) for other in others),
    }
    for key, value in expected.items():
        assert_same(results[key], np.full((2, 3), value))


def test_verdicts_of_low_rank_follow_the_numbers() -> None:
    errors = {"best": 0.2, "row": 0.2, "shuffled": 0.6, "unrelated": 0.7, "printed": 0.3, "elu": 0.05}
    good = {f"{name}_error": value for name, value in errors.items()} | {"printed_row_error": 0.4}
    good |= {"second": 0.1, "shuffled_second": 0.4, "weight": 0.49, "weight_rows": 0.45}
    bad = {name: 1 - value for name, value in good.items()} | {"weight": 0.49, "weight_rows": 0.6}
    bad |= {"second": 0.4, "shuffled_second": 0.1, "printed_row_error": 4.0, "row_error": 0.5}

    def words(numbers: dict[str, float], poor: str = "") -> set[str]:
        heads = {key: np.full((2, 200, 2, 2), value) for key, value in numbers.items()}
        assert unmeasured(low_rank.study_of(heads), "wu2024", "low rank") == []
        results = verdicts(low_rank.study_of(heads, poor), "wu2024", "low rank")
        assert len(results) == 11
        return {verdict.word for verdict in results}

    assert words(good) == {REPRODUCED, YES}
    assert words(bad) == {CONTRADICTED, NO}
    assert words(good, "seal") == {UNDECIDED}


def planted(*, still: str = "", **recalls: float) -> TaskResults:
    """Two seeds of 600 queries; a system is right on this share of them, and wherever a worse system is.

    still: a model that training did not change.
    """
    order = np.linspace(0, 1, 600, endpoint=False)
    results: TaskResults = {}
    for key, share in recalls.items():
        system = CONTROL if key == "CONTROL" else key.replace("_pairs", ", pairs").replace("_", "-")
        row = (order < share).astype(float).tolist()
        name = SYSTEMS.get(system, "")
        dev = {"untrained": [0.1, 0.2] * 8, "trained": [0.1 if name == still else 0.4, 0.2] * 8}
        seed = {"retrieve": dict.fromkeys(MEASURES, row), "bytes": 0}
        results[system] = [seed | {"training": {name: {"kept step": 30, DEV: dev}} if name else {}}] * 2
    return results


def words(family: str, results: TaskResults) -> list[str]:
    return [verdict.word for verdict in verdicts(document_encoding.study_of(results, 1000), "wu2024", family)]


def test_verdicts_of_document_encoding_follow_the_numbers() -> None:
    yes, no, open_ = REPRODUCED, CONTRADICTED, UNDECIDED
    good = planted(BM25=0.9, T5_ColBERT=0.9, DSI=0.5, DSI_PAWA=0.9)
    assert words("table6", good) == [yes, yes, yes, no]  # no gap remains
    assert words("table6", planted(BM25=0.9, T5_ColBERT=0.9, DSI=0.9, DSI_PAWA=0.5)) == [no, no, no, yes]
    assert words("table6", planted(BM25=0.9, DSI=0.4, DSI_PAWA=0.9)) == [open_] * 2, "DSI has not learned"
    controls = planted(BM25=0.9, DSI=0.5, DSI_place=0.9, DSI_PAWA=0.9, T5_SEAL=0.5, CONTROL=0.9)
    assert words("controls", controls) == [NO, YES, NO] * 2
    learned = {"BM25": 0.5, "T5_ColBERT": 0.9}
    assert set(words("table8", planted(**learned))) == {yes}
    assert set(words("table8", planted(**learned, still="colbert"))) == {open_}, "training did not move it"
    below = document_encoding.study_of(planted(**learned, T5_SEAL=0.6, CONTROL=0.9), 1000)
    seal = [v for v in verdicts(below, "wu2024", "table8") if "T5-SEAL" in v.claim.quantity]
    assert {v.reason for v in seal} == {"T5-SEAL is not above its control, SEAL without a model"}


def test_every_contrast_of_the_claims_is_measured() -> None:
    values = {measure: [1.0, 0.0] for measure in MEASURES}
    seed = {"retrieve": values, "bytes": 0, "training": {}}
    results: TaskResults = {system: [seed] for system in (*SYSTEMS, BM25)}
    results["DSI"] = [seed | dict.fromkeys(document_encoding.SEARCHES, values)]
    study = document_encoding.study_of(results, 1000)
    for family in ("table6", "controls", "table7", "table8", "search"):
        assert unmeasured(study, "wu2024", family) == []


def test_bytes_of_a_decoder_are_compared_with_dense_ones() -> None:
    results = planted(DSI=0.9, S_T5=0.9)
    results["DSI"][0]["bytes"], results["S-T5"][0]["bytes"] = 4_000_000, 2_000_000
    assert document_encoding.storage(results, 1000)["measured"] == "2,000"  # 2 kB a document
