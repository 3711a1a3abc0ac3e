"""The training benchmark: what its worker answers about our trainer, and what its tables say."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paradigms.data import Collection, Corpus, Problems, Split
from tests.tiny import TERMS

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))

import training
from parts import trainers

from paradigms import PARADIGMS
from paradigms.train.contrastive import Contrastive
from tests.experiments.scripts import settings as told
from tests.near import assert_within_rounding
from tests.tiny import WORDS, write_collection

STEPS, BATCH, DIM = 3, 8, 8  # one of the steps is a warm-up
LENGTHS = {"query_length": 6, "document_length": 7}


@pytest.fixture(scope="module")
def settings(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> training.Settings:
    """Forty documents of six words; each query is three of a document's words."""
    words = WORDS.split()
    texts = [" ".join(words[(7 * n + 3 * w) % len(words)] for w in range(6)) for n in range(40)]
    queries = [" ".join(text.split()[:3]) for text in texts]
    folder = write_collection(tmp_path_factory.mktemp("words"), texts, queries, {"train": range(40)})
    return training.Settings(
        batches=[BATCH], mini_batch=3, examples=(STEPS - 1) * BATCH, collection=str(folder), dim=DIM,
        encoder=str(tiny_bert), threads=torch.get_num_threads(), device="cpu", **LENGTHS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def work(settings: training.Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.prepare(settings, tmp_path_factory.mktemp("benchmark"))


@pytest.mark.parametrize("mini_batch", [0, 3])
def test_our_trainer_answers_the_job(
    settings: training.Settings, work: Path, monkeypatch: pytest.MonkeyPatch, mini_batch: int
) -> None:
    """The pairs in their order, and the loss that summed maxima have."""
    made, collate = [], Contrastive.collate

    def spied(self: Contrastive, given: list) -> object:
        made.append((self.chunk, [example.query for example in given]))
        return collate(self, given)

    monkeypatch.setattr(Contrastive, "collate", spied)
    job = training.job_of(settings, training.Row("ours", BATCH, mini_batch), work)
    answer = trainers.main(trainers.Job(**vars(job) | {"memory": 0}))
    assert len(answer["seconds"]) == len(answer["cpu_seconds"]) == STEPS - 1
    assert min(answer["seconds"]) > 0 < answer["memory"]
    lines = [json.loads(line) for line in (work / "pairs.jsonl").read_text().splitlines()]
    queries, documents = ([line[side] for line in lines] for side in ("query", "document"))
    assert len(queries) == trainers.CHECKED > STEPS * BATCH
    wanted = [queries] + [queries[n * BATCH : (n + 1) * BATCH] for n in range(STEPS)]
    assert made == [(mini_batch, batch) for batch in wanted]
    model = PARADIGMS["colbert"](work / "encoder", dim=DIM, skip="", **LENGTHS).eval()
    projection = load_file(work / "projection.safetensors")["projection"]
    assert_within_rounding(projection @ projection.T, torch.eye(DIM), torch.float32, 2 * projection.shape[1])
    with torch.no_grad():
        model.encoder.projection.weight.copy_(projection)
    D = [model.encode_documents([text]).vectors.flatten(0, 2) for text in documents]
    Q = [model.encode_queries([text]).vectors.flatten(0, 2) for text in queries]
    assert max(map(len, D)) == LENGTHS["document_length"]  # some are cut
    scores = torch.stack([torch.stack([(d @ q.T).amax(0).sum() for d in D]) for q in Q])
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(lines)))
    terms = TERMS + DIM + LENGTHS["query_length"] + len(lines)
    assert_within_rounding(answer["loss"], loss, torch.float32, terms, scale=float(scores.max()))


def test_no_document_is_relevant_to_two_of_the_pairs() -> None:
    texts = ["one", "two", "three", "one", "five", "six"]  # the fourth repeats the first
    judged = {"a": {"0": 1, "1": 0}, "b": {"1": 1}, "c": {"1": 2, "2": 1}, "d": {"3": 1}, "f": {"5": 1}}
    split = Split({q: f"query {q}" for q in judged}, judged)
    whole = Collection("words", Corpus([*"012345"], texts), {"train": split}, Problems(), "")
    for seed in range(6):
        pairs = training.distinct_pairs(whole, 3, seed)
        queries, documents = [query[-1] for query, _ in pairs], [text for _, text in pairs]
        assert {of: sum(q in of for q in queries) for of in ("ad", "bc", "f")} == {"ad": 1, "bc": 1, "f": 1}
        assert len(set(documents)) == 3
    with pytest.raises(SystemExit, match=r"words has 3 training queries.*and 4 are"):
        training.distinct_pairs(whole, 4, 0)
    with pytest.raises(SystemExit, match="words has no training queries"):
        training.distinct_pairs(Collection("words", whole.corpus, {"test": split}, Problems(), ""), 3, 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"examples": 0}, "examples must be at least 1"),
        ({"batches": "[1]"}, "batches at least 2 pairs"),
        ({"precision": "fp16"}, "precision"),
        ({"peers": "[ragatouille]"}, "sentence-transformers"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    flags: dict[str, object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        told("training", **flags)
    assert message in f"{ended.value.code} {capsys.readouterr().err}"
