"""DPR's question and passage encoders as transformers keeps them: [CLS] or its projection, inner products."""

import tempfile
from pathlib import Path
from typing import Any

from paradigms.encoder.backbone import load_model, load_tokenizer, quiet
from paradigms.formats.heads import POOLED, Head, encoder_with, one_vector
from paradigms.io.typed import Unreadable, read_json
from paradigms.model import Paradigm

PARTS = {"DPRQuestionEncoder": "question_encoder", "DPRContextEncoder": "ctx_encoder"}
LENGTH = 256  # of a text, as the paper cuts passages


def is_dpr(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and read_json(config).get("model_type") == "dpr"


def read_dpr(folder: Path) -> Paradigm:
    """One of the two encoders, for both sides (`registry.load` joins two)."""
    import transformers

    architecture = (read_json(folder / "config.json").get("architectures") or ["none"])[0]
    if architecture not in PARTS:
        raise Unreadable(f"its architecture is {architecture}, not {' or '.join(PARTS)}")
    encoder = getattr(load_model(getattr(transformers, architecture), folder), PARTS[architecture])
    head = None
    if encoder.projection_dim > 0:
        head = Head(encoder.encode_proj.weight.detach(), encoder.encode_proj.bias.detach())
    with tempfile.TemporaryDirectory() as temporary:
        with quiet():
            bert_of(encoder.bert_model).save_pretrained(temporary)
        load_tokenizer(folder).save_pretrained(temporary)
        lengths = {"query_length": LENGTH, "document_length": LENGTH}
        return one_vector(
            encoder_with(Path(temporary), head, **POOLED, **lengths, pooling="cls", normalize=False)
        )


def bert_of(model: Any) -> Any:
    """The same weights under a configuration that says what they are: BERT's."""
    from transformers import BertConfig, BertModel

    known = BertConfig().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    config = BertConfig(**{name: value for name, value in model.config.to_dict().items() if name in known})
    bert = BertModel(config, add_pooling_layer=False)
    bert.load_state_dict(model.state_dict())
    return bert
