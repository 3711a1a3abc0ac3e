"""experiments/alignment_directions.py: rankings and chance against loops, claims about planted numbers."""

import json
from itertools import permutations

import alignment_directions as study
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from alignment_directions import (
    BACKWARD,
    CANDIDATES,
    CHANCE,
    FORWARD,
    GENERATIVE,
    MODELS,
    SYSTEMS,
    TRAINED,
    TRAINED_BACKWARD,
    WHOLE_DOCUMENT,
)
from papers.wu2024.trained_pairs import open_pairs
from rich.console import Console
from studies.gains import DEV

from paradigms import load
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED
from tests.experiments import scripts
from tests.experiments.scripts import pair_flags, settings
from tests.experiments.studies import study_flags
from tests.near import assert_within_rounding


def test_directions_against_loops_over_tokens(finished, words, seq2seq):
    folder = finished("alignment_directions")
    own = settings("alignment_directions", **pair_flags(words, seq2seq["t5"], folder))
    data = open_pairs(own, Accelerator(cpu=True), Console(quiet=True))
    models = folder / "models" / "seed-0"
    mvdr, other, generative = (load(models / name / "checkpoint").eval() for name in MODELS)
    corpus, pool = data.collection.corpus, data.pool(4)
    runs = study.rankings([mvdr, other, generative], data, pool)
    assert list(runs) == ["BM25", *SYSTEMS]
    for query, candidates in pool.items():
        assert all(run[query].keys() == candidates.keys() for run in runs.values())
        q = mvdr.encode_queries([data.test.queries[query]])
        for id in candidates:
            d = mvdr.encode_documents([corpus[corpus.position(id)]])
            stored = d.vectors[0, 0][d.mask[0, 0]].half().float()  # as the index stores them
            S = stored @ q.vectors[0, 0][q.mask[0, 0]].T
            for system, rel, cosines in (
                (FORWARD, S.max(0).values.mean(), 1),
                ("MVDR (q←d), Z = 1", S.max(1).values.sum(), len(S)),
                ("MVDR (q←d), Z = M", S.max(1).values.mean(), 1),
            ):
                assert_within_rounding(runs[system][query][id], rel, torch.float16, 1, scale=cosines)


def test_gr_may_be_left_out(finished, words, tiny_bert, seq2seq, tmp_path):
    folder = finished("alignment_directions")
    flags = study_flags("alignment_directions", words, tiny_bert, seq2seq, folder)
    scripts.run("alignment_directions", **flags | {"generative": "false", "output": tmp_path})
    rows, complete = (json.loads((at / "claims.json").read_text()) for at in (tmp_path, folder / "results"))
    untested = {row["claim"] for row in rows if row["verdict"].startswith("not tested")}
    assert untested == {row["claim"] for row in complete if "GR" in row["quantity"]}
    of_mvdr = [row for row in complete if "GR" not in row["quantity"]]
    assert [row["measured"] for row in rows if row["quantity"] != "–"] == [row["measured"] for row in of_mvdr]


def test_chance_is_the_mean_over_all_orders():
    """Also of a query whose candidates have some, or none, of its relevant documents."""
    pool = {"q": dict.fromkeys("abcd", 0.0), "none": dict.fromkeys("ab", 0.0)}
    judgements = {"q": {"b": 1, "c": 2, "d": 0, "missed": 1}, "none": {"missed": 1}}
    runs = [
        {query: {id: float(-n) for n, id in enumerate(order)}}
        for query, documents in pool.items()
        for order in permutations(documents)
    ]
    chance = study.by_chance(pool, judgements, list(pool))
    for place, query in enumerate(pool):
        values = [per_query(run, {query: judgements[query]}, study.MEASURES) for run in runs if query in run]
        for measure in study.MEASURES:
            expected = np.mean([value.values[measure] for value in values])
            assert chance[measure][place] == pytest.approx(expected, abs=1e-12)


def verdicts(
    forward: float, backward: float, generative: float, recall: float = 0.5, gain: float = 0.2
) -> list[str]:
    """Two seeds of 60 queries with this share of RR@10 = 1, each query right wherever a worse system is.

    recall: R@10 of GR, where BM25 and ColBERT have 0.9. gain: of both models' dev queries in training.
    """
    order = np.linspace(0, 1, 60, endpoint=False)
    shares = {FORWARD: forward} | dict.fromkeys(BACKWARD, backward)
    shares[TRAINED_BACKWARD] = backward
    shares |= dict.fromkeys([*GENERATIVE, WHOLE_DOCUMENT], generative)
    values = {name: {"RR@10": np.tile((order < s).astype(float), (2, 1))} for name, s in shares.items()}
    values[CHANCE] = {"RR@10": np.full((2, 60), 0.05)}
    values[CANDIDATES] = {"RR@10": np.full((2, 60), 0.5)}
    for name in (CANDIDATES, FORWARD, TRAINED_BACKWARD, TRAINED):
        values[name]["R@10"] = np.full((2, 60), recall if name == TRAINED else 0.9)
    dev = {"untrained": [0.1, 0.2] * 8, "trained": [0.1 + gain, 0.2 + gain] * 8}
    trainings = {name: [{"kept step": 30, DEV: dev}] * 2 for name in MODELS}
    assert scripts.unmeasured(study.study_of(values, trainings), "wu2024", "directions") == []
    results = scripts.verdicts(study.study_of(values, trainings), "wu2024", "directions")
    return [verdict.word for verdict in results]


def test_verdicts_follow_the_numbers():
    yes, no, open_ = REPRODUCED, CONTRADICTED, UNDECIDED
    # q→d over three q←d, over six GR, and the 18 pairs of q←d and GR.
    assert verdicts(0.9, 0.2, 0.6) == [yes] * 9 + [no] * 18
    # Directions are readouts of one model; GR and MVDR are two models, which training did not move.
    assert verdicts(0.9, 0.6, 0.2, gain=0.0) == [yes] * 2 + [open_] * 25
    assert verdicts(0.9, 0.6, 0.06) == [yes] * 3 + [open_] * 24, "GR is not above a random order"
    assert verdicts(0.9, 0.6, 0.2, recall=0.4) == [yes] * 3 + [open_] * 24, "less than half of BM25's R@10"
