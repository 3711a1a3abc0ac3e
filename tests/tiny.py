"""Tiny Hugging Face checkpoints with random weights and real tokenizers: encoders for tests, in milliseconds.

`write_checkpoint("bert", folder)` writes what a hub folder of that family holds: config, safetensors and
tokenizer; `write_seq2seq("t5", folder)` writes a whole T5, with its decoder. 2 layers of width 32; the
vocabulary has the words of `WORDS`, punctuation, and single characters for everything else, so that unknown
words fall into several tokens as they do in real models.
"""

import json
import string
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    BertConfig,
    LlamaConfig,
    ModernBertConfig,
    MT5Config,
    MT5EncoderModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    Qwen3Config,
    T5Config,
    T5EncoderModel,
)

from paradigms import PARADIGMS, Paradigm

FAMILIES = ("bert", "modernbert", "t5", "mt5", "qwen3")
DECODERS = ("qwen3", "llama")
LONG = {"max_position_embeddings": 1 << 14}
SEQ2SEQ = ("t5", "t5-v1.1", "mt5")  # tied with ReLU; untied and gated; likewise, of another model type
WIDTH, LAYERS, HEADS = 32, 2, 2
TERMS = 8 * WIDTH * LAYERS  # the lengths of the products that follow each other in such a model
WORDS = """
    a about above after again air all also an and animal answer any are as ask at back bank be because bird
    black blood blue boat body book both box boy bread bridge bring brother brown build but by cat cell chair
    child city class clear cloud coat cold color come cook corn country cow cup cut dark day deep did do dog
    door down draw dream drink dry each ear early earth east eat egg end energy every eye face fall far farm
    father field fire fish five floor flower fly food foot for forest four fox friend from fruit full game
    garden gene girl give glass go gold good grass green group grow had hand has have he head hear heart heat
    her high hill his home horse house how ice if in iron is island it jump key king lake land large last lazy
    learn left letter life light like line lion list live long look made make man many map market may milk
    moon more mother mountain mouse music name near new night no north not now number of old on one open or
    other our out over page paper park part people piece plant play point protein queen quick rain read red
    river road rock room root run sand school sea see seed she ship shoe short side sing sky sleep small snow
    so some song south star stone story street sun table tell that the their they thing this three time to
    town tree two under up use very walk wall war warm was water we well west what wheat when where which
    white who why wind winter with wolf woman wood word work world write year yellow you young"""
BERT_TOKENS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
BERT_TOKENS |= {"mask_token": "[MASK]"}
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def write_checkpoint(family: str, folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Write a tiny checkpoint of a family of `FAMILIES` or `DECODERS`; weights are stored as `dtype`."""
    tokenizer = (
        bytes_of(family) if family in DECODERS else _unigram() if family.endswith("t5") else words_of()
    )
    torch.manual_seed(seed)
    return _save(_model(family, tokenizer), tokenizer, folder, dtype)


def write_roberta(folder: Path, kind: str, name: str = "XLMRoberta", head: str = "Model") -> Path:
    """Write a tiny encoder of RoBERTa's family, whose 66 positions take 64 tokens.

    Some punctuation marks are one token after a space, others are a token for the space and one for the mark.
    kind: tokens are pieces of "sentencepiece", or pairs of "bytes". name, head: a model of transformers.
    """
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words = [*WORDS.split(), ",", "(", "!"]
    if kind == "sentencepiece":
        pieces = [(token, 0.0) for token in special] + [(f"▁{word}", -5.0) for word in words]
        pieces += [(c, -10.0) for c in string.ascii_letters + string.punctuation + "▁"]
        core = Tokenizer(models.Unigram(pieces, unk_id=3))
        core.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        core = Tokenizer(models.BPE(*_byte_pairs(special, words)))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    ends = [("<s>", 0), ("</s>", 2)]
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
    names |= {"sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **names)
    size: dict[str, Any] = _size(tokenizer) | {"max_position_embeddings": 66, "pad_token_id": 1}
    size |= {"bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1, "num_labels": 1}
    if name == "Xmod":
        size |= {"default_language": "en_XX", "languages": ["en_XX"]}
    if name == "Longformer":
        size |= {"attention_window": 8}
    torch.manual_seed(0)
    config, model = (getattr(transformers, name + part) for part in ("Config", head))
    return _save(model(config(**size)), tokenizer, folder, torch.float32)


def write_headed(kind: type[PreTrainedModel], folder: Path, **settings: Any) -> Path:
    """Write a tiny BERT of a class of transformers that has a head, such as BertForMaskedLM."""
    tokenizer = words_of()
    torch.manual_seed(0)
    return _save(kind(BertConfig(**_size(tokenizer) | settings)), tokenizer, folder, torch.float32)


def write_seq2seq(family: str, folder: Path) -> Path:
    """Write a tiny encoder-decoder of a family of `SEQ2SEQ` into `folder`.

    transformers ties the embeddings of every new T5, which those of v1.1 and mT5 on the hub are not.
    """
    tokenizer = _unigram()
    torch.manual_seed(0)
    size = _t5_size(tokenizer) | {"decoder_start_token_id": 0}
    if family == "t5":
        model = AutoModelForSeq2SeqLM.from_config(T5Config(**size, feed_forward_proj="relu"))
    else:
        kind = MT5Config if family == "mt5" else T5Config
        config = kind(**size, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
        model = AutoModelForSeq2SeqLM.from_config(config)
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    return _save(model, tokenizer, folder, torch.float32)


def _save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, dtype: torch.dtype
) -> Path:
    with torch.no_grad():  # weights of the usual .02 would leave a text's tokens almost independent of it
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.normal_(std=1.0 if "embed" in name or "shared" in name else WIDTH**-0.5)
            weight.data = weight.to(dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _model(family: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    if family == "bert":
        return AutoModel.from_config(BertConfig(**_size(tokenizer)))
    if family == "modernbert":
        ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        ends |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "cls_token_id", "sep_token_id")}
        return AutoModel.from_config(ModernBertConfig(**_size(tokenizer), **ends, local_attention=8))
    if family in DECODERS:
        size = _size(tokenizer) | {"num_key_value_heads": 1, "head_dim": 8} | LONG
        config = LlamaConfig(**size) if family == "llama" else Qwen3Config(**size, max_window_layers=LAYERS)
        return AutoModel.from_config(config)
    config, model = {"t5": (T5Config, T5EncoderModel), "mt5": (MT5Config, MT5EncoderModel)}[family]
    return model(config(**_t5_size(tokenizer), feed_forward_proj="gated-gelu"))


def _size(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": 512,
    }


def _t5_size(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": WIDTH,
        "d_kv": WIDTH // HEADS,
        "d_ff": 2 * WIDTH,
        "num_layers": LAYERS,
        "num_heads": HEADS,
    }


def words_of() -> PreTrainedTokenizerFast:
    """BERT's: lower case, punctuation apart, [CLS] … [SEP]."""
    letters = string.ascii_lowercase + string.digits
    entries = [*BERT_TOKENS.values(), *(f"[unused{i}]" for i in range(8)), *string.punctuation, *letters]
    entries += [f"##{letter}" for letter in letters] + ["##s", "##ing", "##ed", *WORDS.split()]
    vocabulary = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = ((token, vocabulary[token]) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **BERT_TOKENS)


def _unigram() -> PreTrainedTokenizerFast:
    """T5's: SentencePiece pieces with ▁ for a space, … </s>."""
    pieces = [(token, 0.0) for token in T5_TOKENS.values()]
    pieces += [(f"▁{word}", -5.0) for word in (*WORDS.split(), "(")]
    characters = string.ascii_letters + string.digits + string.punctuation + "▁"
    pieces += [(character, -10.0) for character in characters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **T5_TOKENS)


def bytes_of(family: str) -> PreTrainedTokenizerFast:
    """Qwen3-Embedding's: bytes, … <|endoftext|>; or Llama's: <s> …, without a token for padding."""
    end = "<|endoftext|>"
    special = [end, "<|im_end|>"] if family == "qwen3" else ["<s>", "</s>"]
    vocabulary, merges = _byte_pairs(special, WORDS.split())
    if family == "llama":
        tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    ends = {"eos_token": "<|im_end|>", "pad_token": end, "padding_side": "left"}
    wrapped = Qwen2Tokenizer(vocabulary, merges, **ends)
    wrapped.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, 0)]
    )
    return wrapped


def _byte_pairs(special: list[str], words: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of all bytes and of each word after a space, and its merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary, merges = {token: n for n, token in enumerate([*special, *letters])}, []
    for word in dict.fromkeys(words):
        word = f"Ġ{word}"
        for n in range(2, len(word) + 1):
            if word[:n] not in vocabulary:
                vocabulary[word[:n]] = len(vocabulary)
                merges.append((word[: n - 1], word[n - 1]))
    return vocabulary, merges


def write_collection(
    folder: Path,
    texts: list[str],
    queries: list[str],
    splits: dict[str, range],
    titles: list[str] | None = None,
) -> Path:
    """A collection in BEIR layout: of query qN document dN is relevant."""
    for name, letter, rows in (("corpus", "d", texts), ("queries", "q", queries)):
        lines = [
            {"_id": f"{letter}{n}", "title": titles[n] if titles else "", "text": text}
            for n, text in enumerate(rows)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "qrels").mkdir()
    for split, chosen in splits.items():
        judged = "".join(f"q{n}\td{n}\t1\n" for n in chosen)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def randomised(model: Any, scale: float = 0.1) -> Any:
    """Add noise to every weight that is trained: of its initial value, a gain of 1 would go unnoticed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(scale * torch.randn(weight.shape, generator=generator))
    return model


def built(name: str, backbone: Path, **settings: Any) -> Paradigm:
    """A paradigm over a tiny checkpoint, which has no masked-language-model head: SPLADE ties one."""
    return PARADIGMS[name](backbone, **({"tied_head": True} if name == "splade" else {}) | settings)
