"""rel(d, q) = Σ_t w_t(d) · w_t(q) with w_t = maxᵢ log(1 + relu(logit_it)): learned sparse retrieval.

Formal et al. 2021 (SPLADE v2, arXiv:2109.10086), Eq. 1, 2 and 6: the backbone's language-model head computes
the logits, the maximum runs over all tokens of the text, and most term weights w_t are 0. The head is a
masked-language-model's, or a decoder's, in which each token sees only earlier tokens (Xu et al. 2025,
arXiv:2504.10816, without their variants that read a text in both directions). D and Q are the distinct terms
with weights above 0, as tokens with ids and h = 1. The alignment A depends on S and the ids: it aligns tokens
with equal ids; Z = 1. One vector of h = |V| numbers with A = 1, as in DPR, gives the same rel; training uses
this form.

- query_terms "own" keeps only the terms that occur in the query (no query expansion). "ones" is SPLADE-doc,
  which gives these terms the weight 1 and does not encode queries.
- uniCOIL (Lin & Ma 2021, arXiv:2106.14807) weighs a text's tokens with a linear layer: it is
  coil(backbone, dim=1, pooled_dim=0, activation="relu", projection_bias=True).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from paradigms.align import EqualIds
from paradigms.core import Tokens, at_least_float32
from paradigms.encoder.backbone import load_backbone, load_model, pretrained, without_cache
from paradigms.encoder.layers import as_terms
from paradigms.encoder.settings import FIXED
from paradigms.encoder.text import ENCODERS, Batch, EncoderSettings, Side, TextEncoder
from paradigms.io.checks import Range
from paradigms.model import paradigm
from paradigms.recipe import Recipe

STARTS = 300  # number of terms above 0 per text when training of a tied head starts


@dataclass(frozen=True, kw_only=True)
class SpladeSettings(EncoderSettings):
    """Settings for SPLADE: which terms to keep, and the regulariser that makes them sparse.

    λ(t) · (query_sparsity · R(Q) + document_sparsity · R(D)) is added to the loss. λ rises
    quadratically to 1 in the first third of the steps (Formal et al. 2021, §3.1). R is a key of
    `losses.REGULARISERS`.
    """

    NOT_OF_DOCUMENTS: ClassVar[tuple[str, ...]] = (
        *EncoderSettings.NOT_OF_DOCUMENTS,
        "sparsity",
        "document_sparsity",
    )

    encoder: str = "splade"
    normalize: bool = False
    special_tokens: bool = False
    query_terms: Literal["all", "own", "ones"] = "all"
    # number of largest weights kept per text; None = all above 0
    most_terms: Annotated[int | None, Range(1, 1 << 20)] = None
    tied_head: bool = False  # tie a new head to the embeddings, for a backbone without one: see `Splade`
    sparsity: Literal["flops", "l1", "df_flops"] = "flops"
    query_sparsity: Annotated[float, Range(0, 1e6)] = 3e-4
    document_sparsity: Annotated[float, Range(0, 1e6)] = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if wrong := self.changed(FIXED | {"normalize": False, "skip": "", "skip_tokens": ""}):
            raise ValueError(f"SPLADE has no {', '.join(wrong)}: its vectors are weights of terms")


class Splade(TextEncoder):
    """Encode each text with a pretrained head, as terms with weights above 0 in ascending id order.

    tied_head: use logits = s · E h + b instead, where E is the backbone's input embeddings, s is 1/√width for
    T5, as in T5's own tied head, and 1 for others, and b is a new bias, chosen so that about `STARTS` terms
    of a text start above 0. Raises ValueError if the backbone has no head and tied_head is not set.
    """

    Settings: ClassVar[type[EncoderSettings]] = SpladeSettings
    settings: SpladeSettings
    scale: Tensor | None  # s ≠ 1, saved with the bias

    def __init__(self, backbone: str | Path, settings: SpladeSettings) -> None:
        super().__init__(backbone, settings)
        self.bias: Tensor | None = None
        self.register_buffer("scale", None)
        if settings.tied_head:
            config = self.backbone.config
            if "t5" in config.model_type:
                self.scale = torch.tensor(config.hidden_size**-0.5)
            probe = self.tokenize(["what a text says, in its own words and in others"], "document")
            with torch.no_grad():
                tied = self._scaled(self.backbone(**probe.inputs())[0][0]) @ self._embeddings.T
                start = -tied.amax(0).topk(min(STARTS, tied.shape[1])).values[-1]
                self.bias = nn.Parameter(start.expand(len(self._embeddings)).clone())

    @property
    def dim(self) -> int:
        return 1

    def labels(self, text: str, side: Side, ids: Tensor | None = None) -> list[str]:
        ids = self.ids_of(self.tokenize([text], side), side) if ids is None else ids
        return list(self.tokenizer.convert_ids_to_tokens(ids.flatten().tolist()))

    @property
    def _embeddings(self) -> Float[Tensor, "v w"]:
        weight: Tensor = self.backbone.get_input_embeddings().weight
        return weight

    @property
    def _terms(self) -> int:
        """The number of terms. Checkpoints may pad their embeddings beyond the tokenizer's entries."""
        return min(len(self.tokenizer), len(self._embeddings))

    def _load_backbone(self, name: str | Path) -> Any:
        if self.settings.tied_head:
            return load_backbone(name)
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL
        from transformers import MODEL_FOR_MASKED_LM_MAPPING as MASKED
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

        try:
            config = type(pretrained(AutoConfig, name))
            if config not in MASKED and config not in CAUSAL:
                raise ValueError(f"{name} has a {config.__name__}, for which transformers has none")
            return without_cache(
                load_model(AutoModelForMaskedLM if config in MASKED else AutoModelForCausalLM, name)
            )
        except ValueError as error:
            raise ValueError(
                f"SPLADE needs its backbone's language-model head: {error}. Choose one that has it, "
                "or set tied_head in Python or an experiment's --options: it makes a head from the embeddings"
            ) from error

    def _together(self, batch: Batch, side: Side) -> Tokens:
        terms = self.settings.query_terms if side == "query" else "all"
        weights = self._weights(batch, side) if terms in ("all", "own") else None
        if terms != "all":
            row, place = batch.counts.nonzero(as_tuple=True)
            counts = torch.zeros(len(batch), self._terms, device=row.device)
            counts[row, batch.input_ids[row, place]] = 1.0
            weights = counts if weights is None else weights * counts
        assert weights is not None
        weights = weights * batch.counts.any(-1, keepdim=True)
        if self.settings.most_terms is not None and self.settings.most_terms < weights.shape[-1]:
            largest, ids = weights.topk(self.settings.most_terms)
            weights = torch.zeros_like(weights).scatter(-1, ids, largest)
        tokens = as_terms(weights)
        return tokens.map(lambda t: t.transpose(0, 1)) if side == "query" else tokens

    def _scaled(self, states: Tensor) -> Tensor:
        return states if self.scale is None else self.scale * states

    def _weights(self, batch: Batch, side: Side) -> Float[Tensor, "x v"]:
        """Compute log(1 + relu(maxᵢ logit_it)), where the maximum runs over all attended tokens."""
        logits = self._hidden(batch, side)
        if self.bias is not None:
            logits = nn.functional.linear(self._scaled(logits), self._embeddings, self.bias)
        logits = logits.masked_fill_(batch.attention_mask[..., None] == 0, -torch.inf)
        # With a gradient, max stores only the places; without one, amax is faster.
        largest = logits.max(1).values if torch.is_grad_enabled() else logits.amax(1)
        # Both functions are monotone, so the maximum comes first.
        return at_least_float32(largest[..., : self._terms].relu()).log1p()


ENCODERS["splade"] = Splade


@paradigm(SpladeSettings)
def splade(settings: SpladeSettings) -> Recipe:
    """Build SPLADE over a backbone with a language-model head, or over one that gets a tied head."""
    return Recipe("splade", EqualIds(), "one", temperature=1.0)
