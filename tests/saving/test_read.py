"""Checkpoints of other libraries: minimal folders of each layout, against their formulas written out here."""

import copy
import json
import os
import shutil
import string
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForTextEncoding,
    AutoTokenizer,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    GPT2Config,
    GPT2Model,
)

import paradigms
from paradigms.baselines.cross_attention import SequenceClassifier, cross_attention
from paradigms.encoder.text import EncoderSettings, TextEncoder
from paradigms.saving import read_checkpoint
from paradigms.saving.read import DIM
from tests.near import assert_same
from tests.test_splade import by_transformers
from tests.tiny import WIDTH, write_checkpoint, write_headed, write_roberta

QUERIES = ["the fish in the sea", "fire, and warm wood?"]
DOCUMENTS = ["the fish, is (in) the sea. and more words", "cold snow", "fire in a house! a home; fox"]
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


def scores_of(model: Any, documents: list[str] = DOCUMENTS) -> Tensor:
    """The scores of all pairs, in float64, by a copy of the model."""
    wide = copy.deepcopy(model).double()
    with torch.inference_mode():
        return wide.score(wide.encode_documents(documents), wide.encode_queries(QUERIES))


def module(kind: str, path: str) -> dict[str, str]:
    return {"type": f"package.modules.{kind}", "path": path}


def write_modules(folder: Path, *modules: dict[str, str], **config: Any) -> None:
    (folder / "modules.json").write_text(json.dumps([module("Transformer", ""), *modules]))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))


def write_module(folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file(tensors, folder / "model.safetensors")


def update(file: Path, **values: Any) -> None:
    """Set entries of a JSON object."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def exact(weights: Tensor) -> Tensor:
    """Weights rounded to sixteenths: products of several linear layers are exact in float32."""
    return (16 * weights).round() / 16


def write_dense(folder: Path, out: int, activation: str = IDENTITY, bias: bool = True, width: int = WIDTH):
    """The weights are returned, in float64."""
    weights = {"linear.weight": exact(torch.randn(out, width))}
    weights |= {"linear.bias": exact(torch.randn(out))} if bias else {}
    write_module(
        folder, weights, activation_function=activation, bias=bias, in_features=width, out_features=out
    )
    return {name: weight.double() for name, weight in weights.items()}


def hidden(folder: Path, texts: list[str], **settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    """ids, attention and hidden states, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = {"padding": True, "return_tensors": "pt", "return_token_type_ids": False} | settings
    rows = tokenizer(texts, **settings)
    loader = AutoModelForTextEncoding if folder.name.endswith("t5") else AutoModel
    with torch.no_grad():
        out = loader.from_pretrained(folder, dtype=torch.float64).eval()(**rows).last_hidden_state
    return rows["input_ids"], rows["attention_mask"], out


def mean(states: Tensor, attention: Tensor) -> Tensor:
    weight = attention[..., None].double()
    return (states * weight).sum(1) / weight.sum(1)


def cosines(d: Tensor, q: Tensor) -> Tensor:
    return torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(d, dim=-1).T


@pytest.fixture(params=["bert", "t5"])
def folder(request, tmp_path):
    torch.manual_seed(0)
    return write_checkpoint(request.param, tmp_path / request.param)


@pytest.fixture
def bert(tmp_path):
    torch.manual_seed(0)
    return write_checkpoint("bert", tmp_path / "bert")


def test_a_plain_encoder_is_cosines_of_means(folder):
    model = paradigms.load(folder)
    assert model.name == "dpr"
    (_, a, q), (_, b, d) = hidden(folder, QUERIES), hidden(folder, DOCUMENTS)
    assert_same(scores_of(model), cosines(mean(d, b), mean(q, a)))


@pytest.mark.parametrize("old", [False, True])
def test_pooling(folder, old):
    flags = {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    write_module(folder / "1_Pooling", **(flags if old else {"pooling_mode": "max"}))
    write_modules(folder, module("Pooling", "1_Pooling"), similarity_fn_name="dot")

    def pooled(texts: list[str]) -> Tensor:
        _, attention, states = hidden(folder, texts)
        return states.masked_fill(attention[..., None] == 0, -torch.inf).amax(1)

    assert_same(scores_of(paradigms.load(folder)), pooled(QUERIES) @ pooled(DOCUMENTS).T)


def test_the_published_dimensions(bert):
    write_module(bert / "1_Pooling", pooling_mode="mean")
    write_modules(bert, module("Pooling", "1_Pooling"), truncate_dim=8)
    (_, a, q), (_, b, d) = hidden(bert, QUERIES), hidden(bert, DOCUMENTS)
    assert_same(scores_of(paradigms.load(bert)), cosines(mean(d, b)[:, :8], mean(q, a)[:, :8]))


def test_lengths_beyond_the_tokenizers_and_augmentation(bert):
    AutoTokenizer.from_pretrained(bert, model_max_length=8).save_pretrained(bert)
    config = {"document_length": 40, "query_expansion": EXPANSION | {"attend": True, "length": 20}}
    (bert / "sentence_bert_config.json").write_text(json.dumps(config))
    write_module(bert / "1_Pooling", pooling_mode="mean")
    for modules, config in (((), MANY), ((module("Pooling", "1_Pooling"),), {})):
        write_modules(bert, *modules, **config)
        settings = paradigms.load(bert).encoder.settings
        assert (settings.query_length, settings.document_length) == (20, 40)
        assert settings.attend_augmentation


def with_marker(ids: Tensor, marker: int) -> Tensor:
    return torch.cat([ids[:, :1], torch.full_like(ids[:, :1], marker), ids[:, 1:]], 1)


def late(
    folder: Path,
    weight: Tensor,
    *,
    lengths: tuple[int, int],
    markers: tuple[str, str],
    attend: bool,
    documents: list[str] = DOCUMENTS,
) -> Tensor:
    """The sum over query tokens of the best cosines, as Stanford's code computes it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float64).eval()
    skip = {tokenizer.encode(mark, add_special_tokens=False)[0] for mark in string.punctuation}
    skip.add(tokenizer.pad_token_id)
    sides = []
    for side, texts in enumerate((QUERIES, documents)):
        rows = tokenizer(
            texts,
            padding="max_length" if side == 0 else True,
            truncation=True,
            max_length=lengths[side] - 1,
            return_tensors="pt",
        )
        ids = with_marker(rows["input_ids"], tokenizer.convert_tokens_to_ids(markers[side]))
        attention = with_marker(rows["attention_mask"], 1)
        counts = attention.bool()
        if side == 0:
            ids = ids.masked_fill(attention == 0, tokenizer.mask_token_id)
            counts = torch.ones_like(counts)
            attention = torch.ones_like(attention) if attend else attention
        else:
            counts &= ~torch.tensor([[i in skip for i in row] for row in ids.tolist()])
        with torch.inference_mode():
            states = model(input_ids=ids, attention_mask=attention).last_hidden_state
        vectors = torch.nn.functional.normalize(states @ weight.double().T, dim=-1)
        sides.append([v[c] for v, c in zip(vectors, counts, strict=True)])
    return torch.stack([torch.stack([(q @ d.T).amax(1).sum() for d in sides[1]]) for q in sides[0]])


@pytest.mark.parametrize("attend", [False, True])
def test_stanford_colbert(bert, attend):
    file = bert / "model.safetensors"
    weight = torch.randn(8, WIDTH)
    state = {f"bert.{name}": t for name, t in load_file(file).items()} | {"linear.weight": weight}
    plain = write_checkpoint("bert", bert.parent / "plain")
    save_file(state, file, metadata={"format": "pt"})
    update(bert / "config.json", architectures=["HF_ColBERT"])
    metadata = {"query_maxlen": 12, "doc_maxlen": 10, "attend_to_mask_tokens": attend, "dim": 8}
    metadata |= {"query_token_id": "fish", "doc_token_id": "fox"}  # of the tiny vocabulary
    (bert / "artifact.metadata").write_text(json.dumps(metadata))
    expected = late(plain, weight, lengths=(12, 10), markers=("fish", "fox"), attend=attend)
    assert_same(scores_of(paradigms.load(bert)), expected)


@pytest.mark.parametrize("marker", ["[unused0]", "<s>"])  # the first is none of the vocabulary
@pytest.mark.parametrize("kind", ["sentencepiece", "bytes"])
def test_stanford_colbert_over_other_tokenizers(tmp_path, kind, marker):
    """Markers are unknown tokens, and one piece of each mark is skipped; 66 positions take 64 tokens."""
    folder = write_roberta(tmp_path / "roberta", kind)
    weight = torch.randn(8, WIDTH)
    save_file({"linear.weight": weight}, folder / "linear.safetensors")
    (folder / "artifact.metadata").write_text(
        json.dumps({"query_maxlen": 12, "doc_maxlen": 300, "query_token_id": marker})
    )
    documents = ["the fish, is ( in ) the sea ~", "cold, <pad> snow! and é", "the fox, " * 40]
    results = scores_of(paradigms.load(folder), documents)
    expected = late(
        folder, weight, lengths=(12, 64), markers=(marker, "[unused1]"), attend=False, documents=documents
    )
    assert_same(results, expected)


def test_stanford_colbert_without_a_place_for_markers_is_refused(tmp_path):
    folder = write_roberta(tmp_path / "roberta", "bytes")
    save_file({"linear.weight": torch.randn(8, WIDTH)}, folder / "linear.safetensors")
    (folder / "artifact.metadata").write_text("{}")
    update(folder / "tokenizer.json", post_processor=None)
    refused(folder, "begins a text with no special token")
    update(folder / "tokenizer_config.json", unk_token=None)
    refused(folder, "neither the marker of a query nor an unknown token")


def test_coil(bert):
    weights = {f"{n}_proj.weight": torch.randn(out, WIDTH) for n, out in (("tok", 4), ("cls", 8))}
    weights |= {f"{n}_proj.bias": torch.randn(out) for n, out in (("tok", 4), ("cls", 8))}
    torch.save(weights, bert / "model.pt")
    torch.save([Loud()], bert / "args.pt")  # never read
    refused(bert, "pickled weights, model.pt")
    results = scores_of(paradigms.load(bert, pickled=True))
    (q_ids, a, q), (d_ids, b, d) = hidden(bert, QUERIES), hidden(bert, DOCUMENTS)
    token, pooled = (
        (weights[f"{n}_proj.weight"].double(), weights[f"{n}_proj.bias"].double()) for n in ("tok", "cls")
    )
    for x, (query, count) in enumerate(zip(q, a.sum(1), strict=True)):
        for y, document in enumerate(d):
            S = (query @ token[0].T + token[1]) @ (document @ token[0].T + token[1]).T
            S = S * (q_ids[x][:, None] == d_ids[y]) * b[y]  # 0 where ids differ: the largest is never below 0
            expected = S.max(1).values[1 : int(count) - 1].sum()  # without [CLS] and [SEP]
            expected += (query[0] @ pooled[0].T + pooled[1]) @ (document[0] @ pooled[0].T + pooled[1])
            assert_same(results[x, y], expected, float(S.abs().sum()))
    torch.save({"ln_tok.weight": torch.ones(4)} | weights, bert / "model.pt")
    with pytest.raises(ValueError, match="ln_tok"):
        paradigms.load(bert, pickled=True)


def dpr_towers(folder: Path, width: int) -> tuple[Any, tuple[Path, Any], tuple[Path, Any]]:
    """The tokenizer, and folder and model of either encoder. width: of a projection, 0 for none."""
    tokenizer = AutoTokenizer.from_pretrained(write_checkpoint("bert", folder / "bert"))
    config = json.loads((folder / "bert" / "config.json").read_text()) | {"projection_dim": width}
    config = DPRConfig(**{k: v for k, v in config.items() if k not in ("model_type", "architectures")})
    pair = []
    for n, kind in enumerate((DPRQuestionEncoder, DPRContextEncoder)):
        torch.manual_seed(n)
        pair.append((folder / kind.__name__, kind(config).eval()))
        for part in (pair[n][1], tokenizer):
            part.save_pretrained(pair[n][0])
    return tokenizer, pair[0], pair[1]


@pytest.mark.parametrize("width", [0, 6])
def test_dpr(tmp_path, width):
    tokenizer, (questions, q), (passages, d) = dpr_towers(tmp_path, width)
    with torch.inference_mode():
        Q, D = (
            model.double()(**tokenizer(texts, padding=True, return_tensors="pt")).pooler_output
            for model, texts in ((q, QUERIES), (d, DOCUMENTS))
        )
    model = paradigms.load(questions, documents=passages)
    assert_same(scores_of(model), Q @ D.T)
    with pytest.raises(ValueError, match="one of DPR's two encoders"):
        paradigms.load(questions)
    with pytest.raises(ValueError, match="has two encoders"):
        model.save_pretrained(tmp_path / "out", layout="sentence-transformers")


def test_pairs_that_do_not_go_together(bert, tmp_path):
    _, (questions, _), _ = dpr_towers(tmp_path / "pair", 6)
    with pytest.raises(ValueError, match="they differ in"):
        paradigms.load(questions, documents=bert)
    reranker = tmp_path / "reranker"
    cross_attention(bert).save_pretrained(reranker)
    with pytest.raises(ValueError, match="pair holds cross_attention"):
        paradigms.load(bert, documents=reranker)
    update(questions / "config.json", architectures=["DPRReader"])
    refused(questions, "its architecture is DPRReader")


def xtr_scores(folder: Path, weight: Tensor) -> Tensor:
    """The mean over query tokens of the best cosines: every token of so small a pool is retrieved."""
    plain = write_checkpoint("t5", folder.parent / "plain" / "t5")
    (_, a, q), (_, b, d) = hidden(plain, QUERIES), hidden(plain, DOCUMENTS)
    q, d = (torch.nn.functional.normalize(x @ weight.T, dim=-1) for x in (q, d))
    best = torch.einsum("bjh,nih->bnij", q, d).masked_fill(b[None, :, :, None] == 0, -torch.inf).amax(-2)
    return (best * a[:, None]).sum(-1) / a.sum(-1, keepdim=True)


def write_like_xtr(folder: Path) -> Tensor:
    """The files of XTR or of a model of one vector a text; and the linear layer."""
    write_module(folder / "1_Pooling", pooling_mode="mean")
    write_modules(folder, module("Pooling", "1_Pooling"), module("Dense", "2_Dense"))
    return write_dense(folder / "2_Dense", DIM, bias=False)["linear.weight"]


@pytest.fixture
def xtr_folder(tmp_path):
    """The published layout of XTR, under a neutral name, and its linear layer."""
    torch.manual_seed(0)
    folder = write_checkpoint("t5", tmp_path / "snapshots" / "0123-t5")
    return folder, write_dense(folder / "2_Dense", DIM, bias=False)["linear.weight"]


def test_xtr_is_known_by_its_files(xtr_folder):
    folder, weight = xtr_folder
    model = paradigms.load(folder)
    assert (model.name, model.recipe.search) == ("xtr", "impute")
    assert model.encoder.settings.skip == ""  # which XTR's default is not
    assert_same(scores_of(model), xtr_scores(folder, weight))


def test_what_may_be_xtr_is_read_as_it_is_told(xtr_folder):
    """A model of one vector a text over a T5 may have the same files."""
    folder, _ = xtr_folder
    shutil.rmtree(folder / "2_Dense")
    weight = write_like_xtr(folder)
    refused(folder, "may be XTR.*layout='xtr' or layout='sentence-transformers'.*--model-layout")
    with pytest.raises(ValueError, match="unknown layout 'other'; there are xtr"):
        paradigms.load(folder, layout="other")
    with pytest.raises(ValueError, match=r"in the format of COIL.*heads\.safetensors"):
        paradigms.load(folder, layout="coil")
    model = paradigms.load(folder, layout="xtr")
    assert_same(scores_of(model), xtr_scores(folder, weight))
    assert paradigms.load(folder, layout="sentence-transformers").name == "dpr"


@pytest.mark.parametrize(
    ("settings", "model_type"),
    [
        ({"out": 768}, None),
        ({"bias": True}, None),
        ({}, "ColBERT"),
        ({}, "SentenceTransformer"),
    ],
)
def test_what_cannot_be_xtr_is_read_as_its_modules_say(tmp_path, settings, model_type):
    """The T5s of one vector a text that are published, and token vectors that say so."""
    folder = write_checkpoint("t5", tmp_path / "xtr-like")
    write_dense(folder / "2_Dense", **{"out": DIM, "bias": False} | settings)
    modules = [module("Dense", "2_Dense")]
    if model_type != "ColBERT":
        write_module(folder / "1_Pooling", pooling_mode="mean")
        modules = [module("Pooling", "1_Pooling"), *modules]
    write_modules(folder, *modules, model_type=model_type, do_query_expansion=False)
    assert paradigms.load(folder).name == ("colbert" if model_type == "ColBERT" else "dpr")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder)


POOLED = [("Pooling", {"pooling_mode": "mean"})]
MANY, SKIPS = {"model_type": "MultiVectorEncoder"}, {"skiplist_words": ["."]}
EXPANSION = {"strategy": "fixed", "length": 8}
HALF_RECOGNISED: list[tuple[list[tuple[str, dict[str, Any]]], dict[str, Any], str]] = [
    ([("WordWeights", {})], {}, "WordWeights is a module that no paradigm supports"),
    ([("Pooling", {"pooling_mode": "weightedmean"})], {}, "pooling is weightedmean"),
    ([("Pooling", {"pooling_mode": ["mean", "max"]})], {}, "pooling is mean and max"),
    ([("Pooling", {"pooling_mode_mean_sqrt_len_tokens": True})], {}, "pooling is mean_sqrt_len"),
    ([("Pooling", {})], {}, "pooling is none"),
    ([("Pooling", {"pooling_mode": "mean", "include_prompt": False})], {}, "leaves the prompt out"),
    (POOLED, {"similarity_fn_name": "euclidean"}, "similarity is euclidean"),
    ([("Normalize", {}), *POOLED], {}, "a Pooling after Normalize"),
    ([*POOLED, ("Normalize", {})], {"truncate_dim": 8, "similarity_fn_name": "dot"}, "truncate_dim after"),
    ([], {"model_type": "SentenceTransformer"}, "pooling none"),
    (POOLED, MANY, "and pooling mean"),
    ([("Dense", {"activation_function": "torch.nn.ReLU"})], {}, "0_Dense has the activation torch.nn.ReLU"),
    ([("Dense", {"activation_function": IDENTITY})], {}, "0_Dense lacks the weights"),
    ([("MultiVectorMask", SKIPS | {"skiplist_tasks": ["query", "document"]})], MANY, "of query and document"),
    ([("MultiVectorMask", {"keep_only_token_ids": [1]})], MANY, "only some token ids"),
    ([], MANY | {"query_expansion": EXPANSION | {"strategy": "min"}}, "by the strategy min"),
    ([], MANY | {"query_expansion": EXPANSION | {"token": "fox"}}, "with the token fox"),
    ([("SpladePooling", {"pooling_strategy": "sum"})], {}, "SpladePooling by sum and relu"),
    ([("SpladePooling", {})], {"similarity_fn_name": "cosine"}, "similarity is cosine"),
]


@pytest.mark.parametrize(("modules", "config", "message"), HALF_RECOGNISED, ids=lambda p: str(p)[:40])
def test_half_recognised_modules_are_refused(bert, modules, config, message):
    rows = []
    for n, (kind, settings) in enumerate(modules):
        write_module(bert / f"{n}_{kind}", **settings)
        rows.append(module(kind, f"{n}_{kind}"))
    write_modules(bert, *rows, **config)
    (bert / "sentence_bert_config.json").write_text(json.dumps(config))
    refused(bert, message)


def test_lower_case_that_the_tokenizer_does_not_make_is_refused(folder):
    write_module(folder / "1_Pooling", pooling_mode="mean")
    write_modules(folder, module("Pooling", "1_Pooling"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    if folder.name == "bert":  # its tokenizer does
        assert paradigms.load(folder).name == "dpr"
    else:
        refused(folder, "lower case")


def test_unknown_folders_say_what_they_hold(tmp_path):
    refused(tmp_path, "it holds nothing")
    (tmp_path / "weights.onnx").write_bytes(b"")
    refused(tmp_path, "it holds weights.onnx")


def test_missing_and_broken_parts_are_named(bert):
    (bert / "artifact.metadata").write_text("{}")
    refused(bert, "no linear.weight")
    (bert / "artifact.metadata").write_text("[]")
    save_file({"linear.weight": torch.randn(8, WIDTH)}, bert / "linear.safetensors")
    refused(bert, "artifact.metadata: must be a JSON object")
    (bert / "artifact.metadata").write_text('{"similarity": "l2"}')
    refused(bert, "similarity is l2")
    (bert / "modules.json").write_text('[{"type": "a.Pooling", "path": ""}]')
    refused(bert, "the first module is Pooling")
    (bert / "modules.json").write_text("{}")
    refused(bert, "the first module is missing")
    (bert / "modules.json").write_text("[1]")
    refused(bert, "not a list of modules")
    (bert / "modules.json").unlink()
    (bert / "artifact.metadata").unlink()
    (bert / "tokenizer.json").unlink()
    refused(bert, "tokenizer")
    (bert / "model.safetensors").unlink()
    (bert / "linear.safetensors").unlink()
    refused(bert, "no .*safetensors")


class Loud:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return exec, ("raise SystemError('code was run')",)


def pickle_weights(folder: Path, parts: int = 1) -> None:
    file = folder / "model.safetensors"
    items = list(load_file(file).items())
    file.unlink()
    for n in range(parts):
        name = "pytorch_model.bin" if parts == 1 else f"pytorch_model-{n + 1:05}-of-{parts:05}.bin"
        torch.save(dict(items[n::parts]), folder / name)


@pytest.mark.parametrize("parts", [1, 2])
def test_pickled_weights_are_read_when_asked_for(folder, parts):
    expected = scores_of(paradigms.load(folder))
    pickle_weights(folder, parts)
    refused(folder, "pickled weights, pytorch_model.*pickled=True")
    model = paradigms.load(folder, pickled=True)
    assert torch.equal(scores_of(model), expected)
    assert not list(folder.glob("*.safetensors"))
    own = folder / "own"
    model.save_pretrained(own)
    pickle_weights(own / "backbone", parts)
    with pytest.raises(ValueError, match=r"pickled weights, backbone/pytorch_model"):
        paradigms.load(own)
    assert torch.equal(scores_of(paradigms.load(own, pickled=True)), expected)


def test_a_pickle_runs_no_code(bert):
    (bert / "model.safetensors").unlink()
    torch.save({"weight": Loud()}, bert / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read as weights alone"):
        paradigms.load(bert, pickled=True)
    torch.save([1], bert / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a state dict"):
        paradigms.load(bert, pickled=True)


@pytest.fixture
def hub(bert, monkeypatch):
    """The names that are downloaded, and whether with pickles, of a repository with the files of a folder."""
    asked = []

    class HfApi:
        def model_info(self, name, revision):
            if name == "owner/offline":
                raise ConnectionError
            files = [str(file.relative_to(bert)) for file in bert.rglob("*") if file.is_file()]
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])

    def snapshot_download(name, revision, allow_patterns):
        asked.append((name if revision is None else f"{name}@{revision}", "*.bin" in allow_patterns))
        return str(bert)

    monkeypatch.setattr("huggingface_hub.HfApi", HfApi)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_a_hub_name_is_downloaded(bert, hub):
    (bert / "pytorch_model.bin").write_bytes(b"never read: it stands beside safetensors")
    assert paradigms.load("owner/name").name == "dpr"
    assert paradigms.load("owner/name", pickled=True).name == "dpr"
    assert paradigms.load("owner/offline").name == "dpr"  # from the cache
    assert paradigms.load("owner/name", revision="v1").name == "dpr"
    assert [name for name, _ in hub] == ["owner/name", "owner/name", "owner/offline", "owner/name@v1"]
    assert [pickled for _, pickled in hub] == [False, True, False, False]
    with pytest.raises(ValueError, match="is a folder: a revision belongs to a repository"):
        paradigms.load(bert, revision="v1")


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "2_Dense/pytorch_model.bin", "model.pt"])
def test_pickled_weights_on_the_hub_are_told_of(bert, hub, pickle):
    """For all weights, those of a module, or COIL's heads, without which a plain encoder would be loaded."""
    if pickle == "pytorch_model.bin":
        (bert / "model.safetensors").unlink()
    (bert / pickle).parent.mkdir(exist_ok=True)
    (bert / pickle).write_bytes(b"never read")
    with pytest.raises(
        ValueError, match=f"owner/name holds pickled weights, {pickle}: .*pickled=True .*--pickled"
    ):
        paradigms.load("owner/name")
    assert not hub  # told before anything is downloaded


@pytest.mark.parametrize("name", ["./nowhere", "results/nowhere/checkpoint", "not a name"])
def test_a_path_is_not_asked_for(name):
    with pytest.raises(FileNotFoundError, match=r"no such folder|not a folder"):
        paradigms.load(name)


def test_layers_that_do_not_merge_and_a_layout_that_does_not_fit_are_refused(bert, tmp_path):
    write_module(bert / "1_Pooling", pooling_mode="max")
    write_dense(bert / "2_Dense", 8, TANH)
    write_modules(bert, module("Pooling", "1_Pooling"), module("Dense", "2_Dense"))
    paradigms.load(bert).save_pretrained(tmp_path / "own")
    with pytest.raises(ValueError, match=r"in the format of XTR .*2_Dense/config\.json is missing"):
        paradigms.load(tmp_path / "own", layout="xtr")  # what is told is not passed over
    write_dense(bert / "3_Dense", 4, width=8)
    write_modules(bert, *(module(name[2:], name) for name in ("1_Pooling", "2_Dense", "3_Dense")))
    refused(bert, "tanh between them do not merge")


def test_what_lies_outside_or_is_half_a_model_is_refused(bert):
    write_modules(bert, module("Pooling", "1_Pooling/../../elsewhere"))
    refused(bert, "lies outside of the folder")
    (bert / "modules.json").unlink()
    (bert / "adapter_config.json").write_text("{}")
    refused(bert, "an adapter of peft: merge it first")
    with pytest.raises(ValueError, match="an adapter of peft: merge it first"):
        paradigms.load(bert, for_search=True)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"attn_implementation": "stranger/kernel"}, "kernel' is code, which is never run"),
        ("config.json", {"num_hidden_layers": 10**7}, r"=1e\+07 is more than its weights have"),
        ("config.json", {"hidden_size": 10**12}, r"=1e\+12 is more than its weights have"),
        ("config.json", {"relative_attention_num_buckets": 10**9}, r"=1e\+09 is more than its weights have"),
        ("config.json", {"num_labels": 10**9}, "num_labels is 1,000,000,000, more than"),
        ("tokenizer_config.json", {"pad_token": None}, "has no pad_token"),
    ],
)
def test_settings_that_no_model_has_are_refused(bert, file, change, message):
    update(bert / file, **change)
    refused(bert, f"{bert}.*{message}")


def many_tensors(backbone: Path) -> None:
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor{n}": tensor for n in range(120_000)}).encode()
    (backbone / "z.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def shards_outside(backbone: Path) -> None:
    (backbone / "model.safetensors").rename(backbone.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"x": "../outside.safetensors"}}
    (backbone / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: os.mkfifo(folder / "added_tokens.txt"), r"backbone.* is a pipe, socket or device"),
        (
            lambda folder: (folder / "z.safetensors").symlink_to("/dev/zero"),
            r"backbone.* is a pipe, socket or device",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 48) + b'{"x":'),
            r"model\.safetensors is damaged",
        ),
        (many_tensors, r"z\.safetensors is damaged, or names too many tensors"),
        (shards_outside, r"model\.safetensors\.index\.json names '.*outside\.safetensors', which is not in"),
    ],
)
def test_files_that_no_checkpoint_has_are_refused_before_a_reader_waits_or_follows(
    tiny_bert, tmp_path, harm, message
):
    saved = tmp_path / "saved"
    paradigms.PARADIGMS["colbert"](tiny_bert, dim=8).save_pretrained(saved)
    harm(saved / "backbone")
    with pytest.raises(ValueError, match=message):
        paradigms.load(saved)
    with pytest.raises(ValueError, match=message):
        TextEncoder(saved / "backbone", EncoderSettings())


def test_a_masked_language_model_is_splade_unless_it_is_to_be_plain(tmp_path, caplog):
    folder = write_headed(BertForMaskedLM, tmp_path / "bert")
    model = paradigms.load(folder)
    assert model.name == "splade"
    assert "read as SPLADE" in caplog.text
    expected = by_transformers(folder, QUERIES) @ by_transformers(folder, DOCUMENTS).T
    assert_same(scores_of(model), expected)
    assert paradigms.load(folder, layout="plain").name == "dpr"


def test_a_sequence_classifier_is_a_reranker(tmp_path):
    model = paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "bert", num_labels=1))
    assert isinstance(model, SequenceClassifier)
    model.save_pretrained(tmp_path / "saved")
    again = paradigms.load(tmp_path / "saved")
    pairs = [(QUERIES[0], text) for text in DOCUMENTS]
    assert again.score_texts(pairs) == model.score_texts(pairs)
    (tmp_path / "bert" / "config_sentence_transformers.json").write_text('{"default_prompt_name": "rank"}')
    with pytest.raises(ValueError, match="a prompt before every pair"):
        paradigms.load(tmp_path / "bert")


def test_another_head_a_decoder_and_several_outputs_are_refused(tmp_path):
    for kind in (BertForTokenClassification, BertLMHeadModel):
        with pytest.raises(ValueError, match=f"{kind.__name__} is not a text encoder"):
            paradigms.load(write_headed(kind, tmp_path / "bert"))
    with pytest.raises(ValueError, match="has 3 outputs; a reranker has one"):
        paradigms.load(write_headed(BertForSequenceClassification, tmp_path / "three", num_labels=3))
    folder = write_checkpoint("bert", tmp_path / "gpt2")
    GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1, n_positions=8, vocab_size=99)).save_pretrained(folder)
    with pytest.raises(ValueError, match="model_type gpt2 is not a text encoder"):
        paradigms.load(folder)
