"""experiments/alignment_adaptation.py end to end on a tiny encoder; its claims about planted numbers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import alignment_adaptation
import numpy as np
import pytest
from papers.qian2022.adaptation_claims import Task, answer, study
from studies.gains import DEV

from paradigms.align import Entropic, TopK
from paradigms.data import load_collection
from paradigms.evaluate import per_query
from paradigms.evaluate.claims import CONTRADICTED, REPRODUCED, UNDECIDED, YES
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from paradigms.retrieve.strategies import MEASURED
from tests.experiments import scripts
from tests.experiments.scripts import SMALL
from tests.tiny import WORDS, write_collection

NAMES = list(MEASURED)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty-eight documents of 5 to 119 words; a query is four words of one."""
    random, words = np.random.default_rng(0), WORDS.split()
    texts = [list(random.choice(words, 5 + 2 * n)) for n in range(58)]
    queries = [" ".join(random.choice(text, 4)) for text in texts]
    documents, splits = [" ".join(text) for text in texts], {"train": range(30), "test": range(30, 58)}
    return write_collection(tmp_path_factory.mktemp("words"), documents, queries, splits)


def run(collection: Path, backbone: Path, output: Path, **changes: object) -> None:
    flags = {"collections": f'["{collection}"]', "backbone": backbone, "output": output, "seeds": "[0]"}
    flags |= {"query_length": 8, "document_length": 16, "depth": 12, "queries": 20}
    scripts.run("alignment_adaptation", **SMALL | flags | changes)


@pytest.fixture(scope="module")
def results(collection: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results") / "adaptation"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_adaptation, "INDEXED_LENGTH", 128)
        run(collection, tiny_bert, output, trained_with='["k=1", "eps=0.1"]')
    return output


def measures(results: Path, collection: Path, own: str = "k=1", seed: int = 0) -> dict[str, Any]:
    return json.loads((results / collection.name / own / f"seed-{seed}" / "values.json").read_text())


def test_the_measures_are_those_of_separate_reranks(results: Path, collection: Path, tmp_path: Path) -> None:
    folder = results / collection.name / "eps=0.1" / "seed-0"
    paradigm = alignment_adaptation.with_document_length(folder / "checkpoint", 128)
    assert paradigm.recipe.align == Entropic(k=1, eps=0.1)
    assert paradigm.encoder.settings.document_length == 128
    data = load_collection(collection)
    index = Index(Store.build(kinds.exact(), paradigm, data.corpus.ids, data.corpus, tmp_path / "index"))
    test, found = data.split("test"), measures(results, collection, "eps=0.1")
    assert len(found["queries"]) == 20
    queries = {query: test.queries[query] for query in found["queries"]}
    pool = Indexed(index, paradigm.with_alignment(TopK(k=1))).search(queries, 12)
    judgements = {query: test.judgements[query] for query in found["queries"]}
    for name in ("k=1", "p=2%", "eps=0.02"):
        reranked = Indexed(index, paradigm.with_alignment(MEASURED[name])).rerank(queries, pool)
        expected = per_query(reranked, judgements, ("nDCG@10",)).values["nDCG@10"]
        assert found["values"][name] == pytest.approx(expected.tolist())
    lengths = np.diff(index.store.offsets)
    assert found["several"]["p=2%"] == pytest.approx((lengths >= 100).mean())
    assert 0 < found["several"]["p=2%"] < 1
    assert found["several"]["k=1"] == 0
    assert {path.name for path in folder.iterdir()} == {"checkpoint", "training", "values.json"}


def planted(
    name: str,
    own: str,
    means: list[float],
    noise: float = 0.05,
    bm25: float = 0.1,
    kept: Sequence[int] = (30,),
) -> Task:
    """One model whose strategies have the given `means`; all other strategies are poor."""
    random = np.random.default_rng(len(name))
    base = random.random(200) * 0.2
    means = means + [0.1] * (len(NAMES) - len(means))
    values = {s: base + mean + random.normal(0, noise, 200) for s, mean in zip(NAMES, means, strict=True)}
    model = {"collection": name, "trained_with": own, "origin": "", "values": values}
    model |= {"several": dict.fromkeys(NAMES, 0.5), "bm25": np.full(200, bm25)}
    model |= {DEV: {"untrained": [0.1, 0.2] * 8, "trained": [0.3, 0.35] * 8}}
    return Task([model | {"kept step": step} for step in kept], [8, 16])


def words(*tasks: Task) -> dict[str, str]:
    found = scripts.verdicts(study(tasks), "qian2022", "adaptation")
    return {verdict.claim.quantity.removeprefix("nDCG@10: "): verdict.word for verdict in found}


LIKE_THE_PAPER = [0.70, 0.69, 0.65, 0.61, 0.56, 0.71, 0.69, 0.67, 0.63]
FLAT = [0.5] + [0.4] * 8
GAIN = [0.3, 0.4, 0.5, 0.6, 0.7, 0.3, 0.3, 0.3, 0.3]


def test_planted_effects_get_their_verdicts() -> None:
    tasks = [
        planted("scifact", "k=1", LIKE_THE_PAPER),
        planted("nfcorpus", "k=1", GAIN),
        planted("squad_v1_dev", "k=1", FLAT),
        planted("scifact", "k=4", [0.5] * 9),
        planted("nfcorpus", "k=4", [0.1] * 9),
    ]
    assert scripts.unmeasured(study(tasks), "qian2022", "adaptation") == [
        "ALIGNER base is better than BM25",  # zero-shot
        "with an entropic alignment, adaptation is “still necessary”",
    ]
    found = words(*tasks)

    def contrast(name: str, a: str, b: str) -> str:
        return found[f"{name}, trained with k=1, {a} − {name}, trained with k=1, {b}"]

    assert contrast("scifact", "k=1", "k=8") == REPRODUCED
    assert contrast("nfcorpus", "k=1", "k=8") == CONTRADICTED
    assert contrast("squad_v1_dev", "k=1", "k=2") == REPRODUCED
    gain = "nfcorpus, trained with k=1, gain by adapting with 16 examples"
    assert found[gain] == YES  # a control: the paper's sentence cannot fail
    assert "− squad_v1_dev, trained with k=1, gain by adapting with 8 examples" in found
    pair = "{0}, trained with k=1, default − {0}, trained with k=4, default"
    assert found[pair.format("scifact")] == REPRODUCED
    average = "the average of scifact, nfcorpus, trained with k=4, gain by adapting with 16 examples"
    assert average in found


@pytest.mark.parametrize(("bm25", "kept"), [(1.7, [30]), (0.1, [30, 0])])
def test_a_model_that_has_not_learned_is_not_heard(bm25: float, kept: list[int]) -> None:
    poor = planted("scifact", "k=1", LIKE_THE_PAPER, bm25=bm25, kept=kept)
    assert set(words(poor).values()) == {UNDECIDED}


def test_the_answer_tells_when_choosing_pays_and_what_care_costs() -> None:
    """Compared with the training's alignment, which no measured query chose."""
    gain, none = planted("nfcorpus", "k=1", GAIN), planted("pydocs", "k=1", FLAT, noise=0.2)
    rows = {
        (row["collection"], row["judged queries"]): row
        for row in answer([gain, none, planted("pydocs", "k=4", FLAT)])
    }
    assert rows["nfcorpus, trained with k=1", 8]["best"].startswith("pays: +0.")
    assert rows["nfcorpus, trained with k=1", 8]["careful (test ≤ 0.05)"].startswith("pays: +0.")
    assert rows["pydocs, trained with k=1", 8]["best"].startswith("costs: -0.")
    assert not rows["pydocs, trained with k=1", 8]["careful (test ≤ 0.05)"].startswith("pays")
    gains = [gain.adapted["best", 8][0].gain, none.adapted["best", 8][0].gain]
    mean = rows["the average of nfcorpus, pydocs, trained with k=1", 8]["best"]
    assert mean.startswith(f"pays: {np.mean([np.mean(g) for g in gains]):+.3f} [")
    assert len([name for name, shots in rows if shots == 8]) == 4
