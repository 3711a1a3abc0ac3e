"""Hard negatives of another round: from a model's ranking, from its first ranks, never judged relevant."""

from pathlib import Path

import torch
from accelerate import Accelerator

from paradigms import PARADIGMS, Paradigm
from paradigms.data import Collection, Corpus, Problems, Run, Split, hold_out, load_collection, read_run
from paradigms.find import Index, Store, kinds
from paradigms.retrieve import Indexed
from paradigms.train import fit, negatives
from paradigms.train.examples import Example, build_examples
from paradigms.train.loop import TrainingSettings
from paradigms.train.negatives import mine
from tests.experiments.scripts import run as run_script
from tests.experiments.scripts import training
from tests.near import assert_same_run
from tests.tiny import WORDS

TEXTS = [" ".join(WORDS.split()[7 * n :][:6]) for n in range(30)]
CORPUS = Corpus([f"d{n}" for n in range(30)], TEXTS)
QUERIES = {f"q{n}": " ".join(TEXTS[3 * n].split()[:3]) for n in range(8)}
SPLIT = Split(
    QUERIES,
    {f"q{n}": {f"d{3 * n}": 1, f"d{3 * n + 1}": 2, f"d{3 * n + 2}": 0} for n in range(7)} | {"q7": {"d2": 0}},
)


def dense(backbone: Path) -> Paradigm:
    torch.manual_seed(0)
    return PARADIGMS["dpr"](backbone, pooling="mean")


def test_a_model_searches_for_the_queries_that_make_examples(tiny_bert, tmp_path):
    model = dense(tiny_bert)
    results = mine(model, CORPUS, SPLIT, depth=9)
    index = Index(Store.build(kinds.exact(), model, CORPUS.ids, CORPUS, tmp_path / "index"))
    assert_same_run(results, Indexed(index, model).search({q: QUERIES[q] for q in list(QUERIES)[:7]}, 9))
    assert all(len(scores) == 9 for scores in results.values())
    assert "q7" not in results  # judged, and nothing is relevant


def test_a_training_draws_negatives_from_what_the_model_finds_before_it(tiny_bert, tmp_path, monkeypatch):
    drawn: list[Run] = []

    def build(corpus: Corpus, split: Split, run: Run, *more: object, **options: object) -> list[Example]:
        drawn.append(run)
        return build_examples(corpus, split, run, *more, **options)

    monkeypatch.setattr(fit, "build_examples", build)
    collection, none = Collection("tiny", CORPUS, {"train": SPLIT}, Problems(), "1"), Split({}, {})
    given: Run = {q: {f"d{3 * n + 5}": 1.0} for n, q in enumerate(list(QUERIES)[:7])}
    results = mine(dense(tiny_bert), CORPUS, SPLIT, depth=100)
    for own_negatives in (False, True, True):  # the last time from the file, though the model is another one
        training = TrainingSettings(steps=1, batch_size=4)
        runs, folder = (given, {}), tmp_path / f"own-{own_negatives}"
        model = dense(tiny_bert)
        rest = training, folder, Accelerator(cpu=True)
        fit.fit(model, collection, (SPLIT, none), runs, 2, 0, *rest, own_negatives=own_negatives)
        assert_same_run(drawn[-1], results if own_negatives else given)
        monkeypatch.setattr(negatives, "mine", lambda *_, **__: None) if own_negatives else None


def test_the_script_trains_a_second_round(words, tiny_bert, tmp_path):
    first = training(words, tiny_bert, tmp_path / "first", options="{}", paradigm="dpr", steps=2)
    run_script("train", **first)
    second = first | {"output": tmp_path / "second", "run": tmp_path / "first" / "checkpoint", "steps": 3}
    run_script("train", **second)
    data = load_collection(words)
    trained = hold_out(data.split("train"), share=0.1)[0]
    model = Paradigm.from_pretrained(tmp_path / "first" / "checkpoint")
    assert_same_run(
        read_run(tmp_path / "second" / "training" / "mined.run"), mine(model, data.corpus, trained, depth=100)
    )
    mined = (tmp_path / "second" / "training" / "mined.run").stat().st_mtime_ns
    run_script("train", **second)  # what was mined is not searched for again
    assert (tmp_path / "second" / "training" / "mined.run").stat().st_mtime_ns == mined
