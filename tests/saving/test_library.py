"""Models that sentence-transformers runs, wrapped: its vectors and scores, our A, index and view."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paradigms
from paradigms import Paradigm
from paradigms.align import Idf, TopK
from paradigms.data import Corpus
from paradigms.find import Store, kinds, open_index
from paradigms.retrieve import Indexed, Reranking
from paradigms.statistics import STATISTICS, Statistics
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from tests.near import SCORES, assert_same_run, assert_within_rounding
from tests.saving.test_read import scores_of, write_dense
from tests.tiny import TERMS, WIDTH, write_checkpoint, write_headed

pytest.importorskip("sentence_transformers", "6.0", reason="needs sentence-transformers 6: make extras")

from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, BertForMaskedLM, BertForSequenceClassification

from paradigms.saving import wrap
from tests.tiny_pages import SAMPLES, SIDE, picture, write_clap, write_colpali, write_colqwen

QUERIES = ["where is the quick fox?", "the old sea", ""]
DOCUMENTS = ["a quick fox in the garden; and the sea.", "the fish of the old sea", "", "fire, and snow."]


def dense(folder: Path, similarity: str = "cosine") -> Any:
    backbone = Transformer(str(write_checkpoint("bert", folder / "bert")))
    prompts = {"query": "find: ", "document": "text: "}
    modules = [backbone, Pooling(WIDTH, "mean"), Dense(WIDTH, 8)]
    return SentenceTransformer(modules=modules, prompts=prompts, similarity_fn_name=similarity)


def sparse(folder: Path, similarity: str = "dot") -> Any:
    written = str(write_headed(BertForMaskedLM, folder / "bert"))
    return SparseEncoder(written, similarity_fn_name=similarity, max_active_dims=9)


def multi(folder: Path, similarity: str = "maxsim", *more: Any) -> Any:
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    backbone = Transformer(str(write_checkpoint("bert", folder / "bert")), query_length=12)
    modules = [backbone, MultiVectorMask(skiplist_words=[".", ";"]), Normalize(**names), *more]
    return MultiVectorEncoder(modules=modules, similarity_fn_name=similarity)


KINDS = [(dense, "cosine"), (dense, "dot"), (sparse, "dot"), (sparse, "cosine")]
KINDS += [(multi, "maxsim"), (multi, "meanmaxsim")]


@pytest.mark.parametrize(("make", "similarity"), KINDS, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_its_scores_are_the_library_s_also_when_indexed_explained_and_saved(tmp_path, make, similarity):
    theirs = make(tmp_path, similarity)
    ours, texts = wrap(theirs), dict(zip("abcd", DOCUMENTS, strict=True))
    score = ours.score(ours.encode_documents(DOCUMENTS), ours.encode_queries(QUERIES))
    wanted = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS))
    assert_within_rounding(score, wanted, torch.float32, 2 * TERMS)
    folder, queries = tmp_path / "index", {"q": QUERIES[0], "r": QUERIES[1]}
    results = Indexed.build(ours, texts, folder, kind="inverted" if make is sparse else "exact")
    run = results.search(queries, 4)
    for query, row in zip(run, wanted[:2].tolist(), strict=True):
        expected = dict(zip("abcd", row, strict=True))
        # float16 or 8 bits of a store
        assert run[query] == pytest.approx({id: expected[id] for id in run[query]}, rel=0.05, abs=2e-3)
    ours.save_pretrained(tmp_path / "saved")
    assert_same_run(Indexed.open(folder, paradigms.load(tmp_path / "saved")).search(queries, 4), run)
    theirs.save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    direct = paradigms.load(tmp_path / "theirs", layout="library")
    assert_same_run(Indexed.open(folder, direct).search(queries, 4), run)
    reranked = Reranking(direct, Corpus.of(texts)).rerank(queries, run)
    assert {query: set(scores) for query, scores in reranked.items()} == {q: set(run[q]) for q in run}
    (explained,) = results.explain(QUERIES[0], next(iter(run["q"])))
    total = sum(s * a for _, _, s, a in explained.links)
    assert total / explained.Z == pytest.approx(explained.rel, rel=1e-4)
    assert explained.picture is None
    if make is multi:
        assert "fox" in explained.query_tokens


def test_its_statistics_and_plugins_are_saved(tmp_path, monkeypatch):
    ours = wrap(multi(tmp_path))
    with pytest.raises(ValueError, match=r"count the ids of its documents with .*Statistics\.of"):
        ours.count_corpus(DOCUMENTS)
    D = ours.encode_documents(DOCUMENTS)
    counted = Statistics.of(
        (row[real] for row, real in zip(D.ids[0], D.mask[0], strict=True)), len(ours.encoder.tokenizer)
    )
    weighed = ours.with_alignment(Idf(statistics=counted.name), "total")
    scores = weighed.score(D, ours.encode_queries(QUERIES))
    weighed.save_pretrained(tmp_path / "saved")
    del STATISTICS[counted.name]  # as in another process
    again = paradigms.load(tmp_path / "saved")
    assert again.score(D, again.encode_queries(QUERIES)).equal(scores)
    monkeypatch.setattr("paradigms.model.plugin_of", lambda registered: "mine.py" * (registered is Idf))
    weighed.save_pretrained(tmp_path / "mine")
    assert json.loads((tmp_path / "mine/plugins.json").read_text()) == {"alignment Idf": "mine.py"}
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"needs the alignment Idf, .* add --plugin mine\.py"):
        paradigms.load(tmp_path / "mine")


def test_another_alignment_is_searched_and_explained(tmp_path):
    ours, texts = wrap(multi(tmp_path)), dict(zip("abcd", DOCUMENTS, strict=True))
    other = ours.with_alignment(TopK(k=2), "total")
    expected = float(other.score(ours.encode_documents(DOCUMENTS[:1]), ours.encode_queries(QUERIES[:1])))
    assert other.explain(QUERIES[0], DOCUMENTS[0]).rel == pytest.approx(expected, rel=1e-5)
    results = Indexed.build(other, texts).search({"q": QUERIES[0]}, 4)["q"]
    assert results["a"] == pytest.approx(expected, rel=2e-3)


def test_pooled_tokens_have_numbers_for_names(tmp_path):
    ours = wrap(multi(tmp_path, "maxsim", HierarchicalTokenPooling(pool_factor=2)))
    explained = ours.explain(QUERIES[0], DOCUMENTS[0])
    assert explained.document_tokens[0] == "[1]"


def test_what_cannot_be_wrapped_is_refused(tmp_path):
    with pytest.raises(ValueError, match="euclidean is no rel; there are cosine, dot"):
        wrap(dense(tmp_path, "euclidean"))
    with pytest.raises(ValueError, match="CrossEncoder is none of"):
        wrap(CrossEncoder(str(write_headed(BertForSequenceClassification, tmp_path / "b", num_labels=1))))
    ours = wrap(dense(tmp_path / "again"))
    objective = Contrastive(ours, Corpus.of({"a": "fish"}), [Example("fish", 0, (), (0,))])
    with pytest.raises(ValueError, match="train it with sentence-transformers, whose losses take every"):
        objective.collate(objective.examples)
    with pytest.raises(ValueError, match="two encoders or another library's"):
        ours.save_pretrained(tmp_path / "out", layout="sentence-transformers")
    for side in ("query", "document"):
        assert ours.tokens([], side).mask.numel() == 0


def test_code_beside_a_model_never_runs(tmp_path):
    dense(tmp_path).save_pretrained(str(tmp_path / "theirs"), create_model_card=False)
    file = tmp_path / "theirs/modules.json"
    file.write_text(file.read_text().replace("sentence_transformers.base.modules.transformer", "mine"))
    (tmp_path / "theirs/mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Transformer: ...")
    with pytest.raises(ValueError, match="trust_remote_code"):
        paradigms.load(tmp_path / "theirs", layout="library")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("attend", "kind"), [(False, {"model_type": "ColBERT"}), (True, {})])
def test_a_pylate_folder(tmp_path, attend, kind):
    """Read here or run there, its scores are the same. Some versions write no model_type."""
    folder = write_checkpoint("bert", tmp_path / "bert")
    write_dense(folder / "1_Dense", 8, bias=False)
    tokenizer, markers = AutoTokenizer.from_pretrained(folder), ["[unused0]", "[unused1]"]
    tokenizer.add_tokens(markers, special_tokens=True)
    tokenizer.save_pretrained(folder)
    kinds_of = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    rows = [{"idx": n, "name": f"{n}", "path": p, "type": t} for n, (p, t) in enumerate(kinds_of.items())]
    (folder / "modules.json").write_text(json.dumps(rows))
    config = dict(zip(("query_prefix", "document_prefix"), markers, strict=True))
    config |= {"do_query_expansion": True, "attend_to_expansion_tokens": attend}
    lengths = {"query_length": 12, "document_length": 10}
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(config | lengths | {"model_type": "ColBERT"}))
    theirs = paradigms.load(folder, layout="library")
    file.write_text(json.dumps(config | lengths | kind))
    ours = paradigms.load(folder)
    assert ours.name == "colbert"
    assert_within_rounding(scores_of(theirs), scores_of(ours), **SCORES)
    file.write_text(json.dumps(config | kind))
    settings = paradigms.load(folder).encoder.settings
    assert (settings.query_length, settings.document_length) == (32, 180)  # PyLate's defaults


def searched(theirs: Any, documents: dict[str, Any], folder: Path) -> tuple[Paradigm, dict[str, float]]:
    """The wrapped model, and its scores of documents in an index on disk, which are the library's."""
    ours = wrap(theirs)
    tokens = ours.encode_documents(list(documents.values()))
    options = {"paradigm": ours.name, "dim": ours.encoder.dim}
    Store.build_from(kinds.exact(), [(list(documents), tokens)], folder, **options)
    run = Indexed(open_index(folder), ours).search({"q": "a red fish"}, 3)["q"]
    Q, D = theirs.encode_query(["a red fish"]), theirs.encode_document(list(documents.values()))
    assert [run[id] for id in documents] == pytest.approx(theirs.similarity(Q, D)[0].tolist(), abs=5e-3)
    assert len(set(run.values())) == 3
    return ours, run


def test_sounds_are_documents(tmp_path):
    """CLAP: a text finds recordings, by one vector each."""
    theirs = SentenceTransformer(str(write_clap(tmp_path / "clap")), local_files_only=True)
    tones = {f"tone {n}": np.sin(np.arange(SAMPLES) * n / 50).astype(np.float32) for n in (1, 2, 3)}
    searched(theirs, tones, tmp_path / "sounds")


@pytest.fixture(scope="module", params=[write_colpali, write_colqwen], ids=["colpali", "colqwen"])
def colpali(request, tmp_path_factory):
    folder = request.param(tmp_path_factory.mktemp("pages") / "model")
    return MultiVectorEncoder(str(folder), local_files_only=True)


def test_pages_are_documents(colpali, tmp_path):
    ours, run = searched(colpali, {f"page {n}": picture(n) for n in range(3)}, tmp_path / "pages")
    best = next(iter(run))
    explained = ours.explain("a red fish", picture(int(best[-1])))
    drawn = explained.picture
    grid = (SIDE, SIDE) if "ColPali" in type(colpali[0].auto_model).__name__ else (3, 2)
    assert (drawn.columns, drawn.rows, drawn.width, drawn.height) == (*grid, 80, 60)
    names = [f"[{row + 1}, {column + 1}]" for row in range(grid[1]) for column in range(grid[0])]
    assert [explained.document_tokens[n] for n in drawn.tokens] == names
    assert explained.rel == pytest.approx(run[best], abs=5e-3)
    assert drawn.source.startswith("data:image/jpeg;base64,")


def test_a_text_that_is_an_address_stays_a_text(colpali):
    ours, address = wrap(colpali), "https://example.org/a.png"
    results = ours.encode_queries([address])
    assert (
        results.vectors[results.mask].numpy() == colpali.encode_query([{"text": address}])[0].numpy()
    ).all()
