"""Corpus statistics: counted by hand, kept and checked by a checkpoint, and read by an A."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import paradigms
from paradigms import PARADIGMS
from paradigms.align import Idf, TableExcess
from paradigms.core import interact
from paradigms.data import Corpus
from paradigms.find import kinds, ranking, scan
from paradigms.model import Paradigm
from paradigms.retrieve import Indexed
from paradigms.statistics import FILE, STATISTICS, Statistics
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from tests.near import assert_same
from tests.tiny import write_checkpoint

TEXTS = ["the fish in the sea", "the fox", "", "the old sea and the fish"]
QUERY = "the fox in the snow"


def check_search(model: Paradigm) -> None:
    """Check that exact and compressed indexes find by the scores of rel."""
    texts = dict(zip("abcd", TEXTS, strict=True))
    expected = {id: score for id, score, _ in model.rank(QUERY, texts) if texts[id]}
    for kind, error in ((kinds.exact(), 5e-3), (kinds.compressed(bits=8), 2e-2)):
        run = Indexed.build(model, texts, kind=kind, precision="no").search({"q": QUERY}, 3)["q"]
        assert run == pytest.approx(expected, abs=error)


@pytest.fixture
def model(tmp_path: Path) -> Paradigm:
    return PARADIGMS["colbert"](write_checkpoint("bert", tmp_path / "bert")).eval()


def test_counts_by_hand(model):
    counted = model.count_corpus(iter(TEXTS))
    vocabulary = model.encoder.tokenizer.get_vocab()
    df = {word: int(counted.frequencies[vocabulary[word]]) for word in ("the", "fish", "fox", "sea", "snow")}
    assert df == {"the": 3, "fish": 2, "fox": 1, "sea": 2, "snow": 0}
    assert int(counted.frequencies[vocabulary["[CLS]"]]) == 3
    assert counted.tokens == 5 + 2 + 6 + 3 * 2  # [CLS] and [SEP] of three texts
    idf = counted.idf(torch.tensor([vocabulary["fox"], vocabulary["snow"]]))
    assert_same(idf, [math.log(1 + 3.5 / 1.5), math.log(1 + 4.5 / 0.5)])
    assert model.count_corpus(TEXTS).name == counted.name != model.count_corpus(TEXTS[1:]).name


def test_A_reads_them_and_nothing_else_of_the_corpus(model):
    """The law: a query token's column is its IDF times the maximum."""
    counted = model.count_corpus(TEXTS)
    weighed = model.with_alignment(Idf(statistics=counted.name), "total").double()
    D, Q = weighed.encode_documents(TEXTS[:2]), weighed.encode_queries([QUERY])
    built, plain = weighed.interact(D, Q), interact(D, Q, model.align, model.normalise)
    assert_same(built.alignment, plain.alignment * counted.idf(Q.ids)[:, :, None, :])
    explained = weighed.explain(QUERY, TEXTS[0])
    assert explained.reads.startswith("the corpus's document frequencies")


def test_it_is_indexed_and_trained(model, monkeypatch):
    """A store is scored by the compiled kernels, whatever its kind."""
    texts = dict(zip("abcd", TEXTS, strict=True))
    counted = model.count_corpus(texts.values())
    weighed = model.with_alignment(Idf(statistics=counted.name), "total")
    for place in (ranking, scan):
        monkeypatch.setattr(place, "score", lambda *_: pytest.fail("all of S was formed"))
    check_search(weighed)
    objective = Contrastive(weighed, Corpus.of(texts), [Example(QUERY, 1, (0,), (1,))])
    objective.loss(weighed, objective.collate(objective.examples)).backward()
    assert weighed.encoder.backbone.embeddings.word_embeddings.weight.grad.any()


def test_floors_are_counted_searched_and_kept(model, tmp_path):
    """A floor is the mean over occurrences of the similarity that a share of the tokens exceeds."""
    counted = model.count_floors(TEXTS, share=0.2)
    D = torch.from_numpy(np.concatenate(model.encode(TEXTS)))
    Q = model.encode_queries([text for text in TEXTS if text])
    fish = model.encoder.tokenizer.get_vocab()["fish"]
    of_fish = Q.vectors[Q.mask & (Q.ids == fish)]
    assert len(of_fish) == 2
    rank = round(0.2 * len(D))
    floor = (of_fish @ D.T).sort(1, descending=True).values[:, rank - 1].mean()
    assert float(counted.floors[fish]) == pytest.approx(float(floor), abs=1e-5)
    snow = model.encoder.tokenizer.get_vocab()["snow"]
    assert counted.floors[snow] == counted.floors[-1] != counted.floors[fish], "no occurrence: the mean"
    ranked = model.with_alignment(TableExcess(statistics=counted.name)).double()
    check_search(ranked)
    ranked.save_pretrained(tmp_path / "saved")
    del STATISTICS[counted.name]
    paradigms.load(tmp_path / "saved")
    assert STATISTICS[counted.name].floors.equal(counted.floors)
    with pytest.raises(ValueError, match="have no floors: count the corpus with count_floors"):
        model.with_alignment(TableExcess(statistics=model.count_corpus(TEXTS).name)).explain(QUERY, TEXTS[0])


def test_a_checkpoint_keeps_and_checks_them(model, tmp_path):
    counted = model.count_corpus(TEXTS)
    folder = tmp_path / "saved"
    model.with_alignment(Idf(statistics=counted.name), "total").save_pretrained(folder)
    del STATISTICS[counted.name]  # as in another process
    with pytest.raises(ValueError, match=r"no statistics .*open the checkpoint that holds them"):
        model.with_alignment(Idf(statistics=counted.name)).explain(QUERY, TEXTS[0])
    again = paradigms.load(folder)
    assert STATISTICS[counted.name].frequencies.equal(counted.frequencies)
    again.explain(QUERY, TEXTS[0])

    full = load_file(folder / FILE)
    for change, message in (
        ({"documents": torch.tensor(9)}, f"not {counted.name}, which the alignment reads"),
        ({"documents": torch.tensor(1)}, "are not of 1 documents"),
        ({"more": torch.tensor(2)}, "it holds documents, frequencies, more, tokens"),
    ):
        save_file(full | change, folder / FILE)
        with pytest.raises(ValueError, match=rf"{FILE}.*{message}"):
            paradigms.load(folder)
    (folder / FILE).unlink()
    with pytest.raises(FileNotFoundError, match=f"needs the corpus statistics {counted.name}"):
        paradigms.load(folder)


def test_another_vocabulary_is_refused(model, tmp_path):
    few = Statistics(4, 20, torch.tensor([1, 2, 3]))
    wrong = model.with_alignment(Idf(statistics=few.name))
    with pytest.raises(ValueError, match="not of the 3 tokens that were counted: another tokenizer"):
        wrong.score(model.encode_documents(TEXTS), model.encode_queries([QUERY]))
    wrong.save_pretrained(tmp_path / "wrong")
    with pytest.raises(ValueError, match="counts 3 tokens, and the model has"):
        paradigms.load(tmp_path / "wrong")
    tokens = model.encode_queries([QUERY])
    with pytest.raises(ValueError, match="needs the ids of query tokens"):
        wrong.score(model.encode_documents(TEXTS), type(tokens)(tokens.vectors, tokens.mask))
    with pytest.raises(ValueError, match="floors must be 3 finite numbers"):
        Statistics(4, 20, torch.tensor([1, 2, 3]), torch.tensor([0.1, 0.2]))
