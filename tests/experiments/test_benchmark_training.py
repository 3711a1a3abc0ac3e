"""The training benchmark: what its worker answers about our trainer, and what its tables say."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paradigms.data import Collection, Corpus, Problems, Split

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "benchmarks"))

import training
from training_parts import trainers

from paradigms import PARADIGMS
from paradigms.train.contrastive import Contrastive
from tests.tiny import WORDS, write_collection

STEPS, BATCH = 3, 8  # one of them a warm-up


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents of six words; each query is three of a document's words."""
    folder, words = tmp_path_factory.mktemp("words"), WORDS.split()
    texts = [" ".join(words[(7 * n + 3 * w) % len(words)] for w in range(6)) for n in range(40)]
    queries = [" ".join(text.split()[:3]) for text in texts]
    return write_collection(folder, texts, queries, {"train": range(40)})


@pytest.fixture(scope="module")
def settings(collection: Path, tiny_bert: Path) -> training.Settings:
    return training.Settings(
        batches=[BATCH], mini_batch=3, examples=(STEPS - 1) * BATCH, collection=str(collection),
        encoder=str(tiny_bert),
        dim=8, query_length=6, document_length=7, threads=torch.get_num_threads(), device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def work(settings: training.Settings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.prepare(settings, tmp_path_factory.mktemp("benchmark"))


@pytest.fixture(scope="module")
def answers(
    settings: training.Settings, work: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[dict, list]]:
    """mini_batch -> what the worker answers, in this process, and the batches that it made, as the number
    of texts encoded at once and the queries."""
    found = {}
    for mini_batch in (0, settings.mini_batch):
        row, made = training.Row("ours", BATCH, mini_batch), []
        folder = tmp_path_factory.mktemp("job")
        (folder / "job.json").write_text(
            json.dumps(vars(training.job_of(settings, row, work)) | {"memory": 0})
        )
        with pytest.MonkeyPatch.context() as patch:
            collate = Contrastive.collate

            def spied(self: Contrastive, given: list, collate=collate, made: list = made) -> object:
                made.append((self.chunk, [example.query for example in given]))
                return collate(self, given)

            patch.setattr(Contrastive, "collate", spied)
            trainers.main(folder)
        found[mini_batch] = json.loads((folder / "answer.json").read_text()), made
    return found


@pytest.mark.parametrize("mini_batch", [0, 3])
def test_our_trainer_takes_the_pairs_in_their_order(answers: dict, work: Path, mini_batch: int) -> None:
    queries = [json.loads(line)["query"] for line in (work / "pairs.jsonl").read_text().splitlines()]
    assert len(queries) == trainers.CHECKED > STEPS * BATCH
    wanted = [queries] + [queries[n * BATCH : (n + 1) * BATCH] for n in range(STEPS)]
    assert answers[mini_batch][1] == [(mini_batch, batch) for batch in wanted]


def test_the_loss_is_that_of_summed_maxima(answers: dict, work: Path, settings: training.Settings) -> None:
    lines = [json.loads(line) for line in (work / "pairs.jsonl").read_text().splitlines()]
    lengths = {"query_length": settings.query_length, "document_length": settings.document_length}
    model = PARADIGMS["colbert"](work / "encoder", dim=settings.dim, skip="", **lengths).eval()
    made = load_file(work / "projection.safetensors")["projection"]
    torch.testing.assert_close(made @ made.T, torch.eye(settings.dim), atol=1e-5, rtol=0.0)
    with torch.no_grad():
        model.encoder.projection.weight.copy_(made)

    def vectors(side: str) -> list[torch.Tensor]:
        encode = model.encode_queries if side == "query" else model.encode_documents
        return [encode([line[side]]).vectors.flatten(0, 2) for line in lines]

    documents = vectors("document")
    scores = torch.stack(
        [torch.stack([(d @ q.T).amax(0).sum() for d in documents]) for q in vectors("query")]
    )
    assert max(len(d) for d in documents) == settings.document_length  # some are cut
    wanted = torch.nn.functional.cross_entropy(scores, torch.arange(len(lines)))
    assert answers[0][0]["loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert answers[3][0]["loss"] == pytest.approx(wanted.item(), rel=1e-5)


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
    ("changes", "message"),
    [
        ({"examples": 0}, "examples must be at least 1"),
        ({"batches": [1]}, "2 pairs or more"),
        ({"precision": "fp16"}, "precision must be no or bf16"),
        ({"peers": ["ragatouille"]}, "peers are sentence-transformers and pylate, not 'ragatouille'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        training.Settings(**changes)
