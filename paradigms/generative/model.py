"""rel(d, q) = log p(identifier of d | q): a sequence-to-sequence model as one module to train and save.

Wu et al. 2024 (arXiv:2404.00684), Eq. 8 to 14. The model is built for a corpus; the identifiers of its
documents take the place of an index. DSI, GENRE and SEAL differ in their identifiers; PAWA and NP-decoding
change the output vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from paradigms.data import Corpus
from paradigms.encoder.backbone import load_heads, quiet
from paradigms.encoder.batches import Batch, by_length
from paradigms.encoder.frozen import LowerStates, open_states
from paradigms.encoder.tokenizing import beginnings, call_tokenizer
from paradigms.generative import backbone as base
from paradigms.generative.decoder import Memory, decode, remember, small_decoder
from paradigms.generative.identifiers import START, Identifiers, Targets, text, titles
from paradigms.generative.np_decoding import Clusters, cluster_tokens
from paradigms.generative.outputs import Outputs, Pawa, ScoreName
from paradigms.generative.settings import GenerativeSettings, check_places, without_sets
from paradigms.io.checks import naming, read_settings
from paradigms.io.files import settle, write_json
from paradigms.rooms import Entry
from paradigms.trainable import Trainable

if TYPE_CHECKING:
    from paradigms.generative.retriever import GenerativeRetriever

SETTINGS, HEADS = "generative.json", "heads.safetensors"
# Padded tokens in one pass of the decoder; each has a logit for every entry of the vocabulary.
TOKENS = {"cpu": 1 << 10}
MANY_TOKENS = 1 << 14


PMI: ScoreName = "pointwise_mutual_information"
Readings = list[Float[Tensor, "b n m h"]]  # the states that a scorer reads; see `Generative.readings`


class Generative(Trainable):
    """log p(identifier | query) from T5, BART, or an encoder with a small decoder."""

    def __init__(
        self,
        settings: GenerativeSettings,
        backbone: str | Path,
        identifiers: Identifiers,
        clusters: Clusters | None = None,
    ) -> None:
        """Build the modules. settings.tokens = "clusters" requires `clusters`."""
        super().__init__()
        check_places(settings, identifiers)
        self.settings = settings
        self.identifiers = identifiers
        self.states: LowerStates | None = None  # of a frozen encoder; see `keep_states`
        self.backbone: Any = base.load_base(backbone)
        self.clusters = clusters
        self.tokenizer = base.load_base_tokenizer(backbone)
        config = self.backbone.config
        width: int = config.hidden_size
        new_tokens = settings.tokens == "own"
        if not new_tokens and identifiers.vocabulary > config.vocab_size:
            raise ValueError(
                f"identifiers use {identifiers.vocabulary} tokens, the vocabulary of {backbone} has "
                f"{config.vocab_size}: build them with its tokenizer"
            )
        self.width = width
        self.added = None
        dropout = getattr(config, "dropout_rate", getattr(config, "dropout", 0.0))  # T5's or BART's
        if not config.is_encoder_decoder:
            heads = getattr(config, "num_attention_heads", 8)
            self.added = small_decoder(width, heads, settings.decoder_layers)
            dropout = 0.0
        size = identifiers.vocabulary if new_tokens else config.vocab_size
        vectors = base.token_vectors(self.backbone)
        self.embedding = self.table = self.pawa = None
        if new_tokens:
            self.embedding = nn.Parameter(torch.randn(size, width) * vectors.std())  # the backbone's scale
        elif self.added is not None and clusters is None:
            self.embedding = nn.Parameter(vectors.clone())
        if settings.pawa_rank:
            self.pawa = Pawa(size, width, settings.pawa_rank, settings.pawa_layers, dropout)
        elif new_tokens:
            self.table = nn.Parameter(torch.randn(size, width))
        if config.is_encoder_decoder and (settings.tokens != "backbone" or self.pawa is not None):
            output = self.backbone.lm_head.weight  # unused: it would get no gradient
            output.requires_grad_(output is self.backbone.get_input_embeddings().weight)
        for weight in self.encoder.parameters() if settings.frozen else ():
            weight.requires_grad_(False)
        self._softmax = self._softmax_tokens()

    @classmethod
    def build(
        cls, settings: GenerativeSettings, backbone: str | Path, identifiers: Identifiers, corpus: Corpus
    ) -> Generative:
        """Build a model to train. If token clusters are needed, the encoder reads the corpus."""
        plain = (settings.tokens, settings.softmax) == ("backbone", "vocabulary")
        if plain and not base.has_decoder(backbone):  # a new decoder is untrained
            settings = replace(settings, softmax="identifiers")
        if settings.refresh and settings.frozen:
            raise ValueError(f"refresh={settings.refresh}: a frozen encoder's vectors stay in their clusters")
        check_places(settings, identifiers)
        clusters = None
        if settings.tokens == "clusters":
            read = base.load_base(backbone).to("cuda" if torch.cuda.is_available() else "cpu").eval()
            encoder = base.encoder_of(read)
            vectors = base.token_vectors(read)
            tokenizer = base.load_base_tokenizer(backbone)
            clusters = cluster_tokens(encoder, vectors, tokenizer, corpus, identifiers, settings)
        return cls(settings, backbone, identifiers, clusters)

    def add(self, corpus: Corpus, *, title_length: int = 24) -> Generative:
        """Return this model with more documents, named by title or text, whose identifiers join the trie.

        The weights are shared and nothing is trained. A softmax over identifiers' tokens then also includes
        the new tokens. The result's `identifiers.problems` concern only the new names. Raises ValueError if
        the identifiers are neither titles nor texts, if the model has token clusters, or if a document is
        already in the model.
        """
        kind = self.identifiers.kind
        if self.clusters is not None or kind not in ("title", "text"):
            what = f"{kind} identifiers" if self.clusters is None else "clusters of tokens"
            raise ValueError(f"{self.name} has {what}, which its corpus makes: train it with all documents")
        if kind == "title":
            new = titles(corpus, self.tokenizer, title_length)
        else:
            new = text(corpus, self.tokenizer, self.settings.document_length)
        model = copy(self)
        model.identifiers = self.identifiers.joined(new)
        check_places(self.settings, model.identifiers)
        model._softmax = model._softmax_tokens()
        return model

    def refresh(self, corpus: Corpus) -> None:
        """Cluster the identifiers' tokens again with the current encoder. Global random state is not used."""
        if self.clusters is None:
            raise ValueError(f"{self.name} has no clusters to renew: its tokens are {self.settings.tokens!r}")
        encoder = self.encoder
        old = self.clusters
        ids = self.identifiers
        with self.evaluating():
            new = cluster_tokens(encoder, old.vectors, self.tokenizer, corpus, ids, self.settings, old=old)
        self.clusters.load_state_dict(new.state_dict())

    @property
    def name(self) -> str:
        return self.settings.name

    def description(self) -> dict[str, Any]:
        """Return the settings, with digests of the identifiers and the clusters' surface tokens."""
        surface = None if self.clusters is None else self.clusters.surface.astype("<i8").tobytes()
        clusters = None if surface is None else hashlib.sha256(surface).hexdigest()
        return asdict(self.settings) | {"identifiers": self.identifiers.digest, "clusters_of": clusters}

    def check_corpus(self, ids: Sequence[str]) -> None:
        if self.identifiers.documents != ids:
            raise ValueError(
                f"{self.name} names the {len(self.identifiers.documents):,} documents of another corpus, not "
                f"these {len(ids):,}: a generative paradigm ranks the corpus it was built for"
            )

    def retriever(self, corpus: Corpus, precision: str) -> GenerativeRetriever:
        """Return what searches the corpus in the model's weights, under the caller's autocast."""
        retriever: GenerativeRetriever = Entry("GenerativeRetriever")(self)
        return retriever

    def tokenize(self, texts: Sequence[str]) -> Batch:
        """Tokenize queries or passages for the encoder; every token counts, including </s>."""
        length = self.settings.query_length
        texts = beginnings(self.tokenizer, texts, length)
        rows = call_tokenizer(
            self.tokenizer, texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        return Batch(rows["input_ids"], rows["attention_mask"], rows["attention_mask"].bool())

    def targets(self, rows: Sequence[Sequence[Sequence[int]]]) -> Targets:
        return Targets.pad(rows, self.start)

    @property
    def start(self) -> int:
        """The decoder's first input: `START`, or BART's start token if BART's vocabulary is used."""
        config = self.backbone.config
        bart = config.model_type == "bart" and self.settings.tokens == "backbone"
        return config.decoder_start_token_id if bart else START

    @property
    def encoder(self) -> Any:
        return base.encoder_of(self.backbone)

    @property
    def decoder(self) -> Any:
        return self.backbone.get_decoder() if self.added is None else self.added

    @property
    def layers(self) -> list[nn.Module]:
        """Return the encoder's layers only: `decode` calls the parts of the decoder's layers directly."""
        decoding = {id(module) for module in self.decoder.modules()}
        return [layer for layer in super().layers if id(layer) not in decoding]

    def train(self, mode: bool = True) -> Generative:
        super().train(mode)
        if self.settings.frozen:
            self.encoder.eval()
        return self

    def begin(self, sources: Batch) -> tuple[Float[Tensor, "b j h"], Memory]:
        """Return Q, the queries' encoder states, and the memory for decoding."""
        sources = sources.to(self.device)
        if self.states is not None:
            weights = self.encoder.parameters()
            states = self.states.find(sources, lambda missing: self.encode(missing).half(), weights)
        else:
            states = self.encode(sources)
        return states, remember(self.decoder, states, sources.attention_mask.bool())

    def encode(self, sources: Batch) -> Float[Tensor, "b j h"]:
        """Return Q, the queries' encoder states, without gradients if the encoder is frozen."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.settings.frozen):
            return self.encoder(**sources.to(self.device).inputs()).last_hidden_state

    def keep_states(self, folder: Path) -> LowerStates:
        """Cache a frozen encoder's states in float16 in `folder`; models with equal encoders share them.

        Raises ValueError if the encoder is not frozen.
        """
        if not self.settings.frozen:
            raise ValueError(f"{self.name} trains its encoder, so its states change")
        self.states = open_states(folder, self.encoder, self.encoder.state_dict(), self.encoder.parameters())
        return self.states

    def embed(self, ids: Int[Tensor, "*x"]) -> Float[Tensor, "*x h"]:
        """Look up the decoder's input vectors for tokens."""
        return nn.functional.embedding(ids, self._input_table)

    def outputs(self, states: Float[Tensor, "b n m h"], prefix: Int[Tensor, "b n t"]) -> Outputs:
        """Return `Outputs` for the states of the last m positions in a prefix of t tokens."""
        count = states.shape[-2]
        adapted = None
        if self.pawa is not None:
            adapted = self.pawa.adapt(self.embed(prefix))[..., -count:, :]
        self._softmax = [None if t is None else t.to(self.device) for t in self._softmax]  # moved once
        candidates, allowed = self._softmax
        if allowed is not None:
            length = prefix.shape[-1]
            places = torch.arange(length - count, length, device=self.device)
            allowed = allowed[places.clamp(max=len(allowed) - 1)]
        return Outputs(states * self._scale, self._output_table, adapted, candidates, allowed)

    @property
    def _input_table(self) -> Tensor:
        if self.clusters is not None:
            return self.clusters.vectors
        return self.backbone.get_input_embeddings().weight if self.embedding is None else self.embedding

    @property
    def _output_table(self) -> Tensor:
        if self.pawa is not None:
            return self.pawa.matrices
        if self.table is not None:
            return self.table
        tied = self.added is not None or self.clusters is not None
        return self._input_table if tied else self.backbone.lm_head.weight

    @property
    def _scale(self) -> float:
        """s in logit_v = s · hᵀ w_v: 1/√h for T5 v1.0 and for new vectors, 1 for T5 v1.1, mT5 and BART."""
        config = self.backbone.config
        settings = self.settings
        new_vectors = settings.tokens != "backbone" or settings.pawa_rank
        tied = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        scaled = new_vectors or self.added is not None or (tied and config.model_type == "t5")
        return self.width**-0.5 if scaled else 1.0

    def forward(self, sources: Batch, targets: Targets, *scorers: ScoreName) -> Float[Tensor, "*s b n m"]:
        """log p(d_i | d_<i, q) of every target token, or its contribution under other scorers; 0 at padding.

        With multiple scorers, the result has a leading axis s.
        """
        names = scorers or ("log_probability",)
        memories = self.memories(sources, *names)
        states = self.decode(memories, targets.inputs)
        parts = [self.token_parts(self.readings(states, memories, name), targets, name) for name in names]
        return parts[0] if len(parts) == 1 else torch.stack(parts)

    def memories(self, sources: Batch, *scorers: ScoreName) -> list[Memory]:
        """Return the queries' memory, then empty queries' memory if a scorer subtracts log p(d | "")."""
        memories = [self.begin(sources)[1]]
        if PMI in scorers:
            memories.append(self.begin(self.tokenize([""] * len(sources.input_ids)))[1])
        return memories

    def decode(
        self, memories: Sequence[Memory], inputs: Int[Tensor, "b n t"]
    ) -> list[Float[Tensor, "b n m h"]]:
        """Compute, for each memory, the decoder states of the inputs that are not in it yet."""
        past = memories[0].past
        new = self.embed(inputs[..., past[0][0].shape[2] if past else 0 :])
        return [decode(self.decoder, new, memory) for memory in memories]

    def readings(
        self, states: Sequence[Float[Tensor, "b n m h"]], memories: Sequence[Memory], scorer: ScoreName
    ) -> Readings:
        """Select the states that a scorer reads: h_i, c_i for query_part, or two states for a difference.

        c_i = Σ_h O_h V_h Q α_hi is what the last layer's cross-attention adds to its input.
        """
        if scorer == PMI:
            return list(states[:2])
        if scorer != "query_part":
            return list(states[:1])
        assert memories[0].crossing is not None
        return [memories[0].crossing]

    def sequence_scores(
        self, sources: Batch, sequences: Sequence[Sequence[Sequence[int]]], *scorers: ScoreName
    ) -> list[Float[np.ndarray, "s n"]]:
        """Score each query's non-empty sequences, sequences[b][n], by each scorer, with teacher forcing.

        A query is encoded once, and its sequences share its keys and values. What a scorer subtracts for the
        empty query is computed once per distinct sequence, for which it keeps one number.
        """
        whole = dict.fromkeys("log_probability" if scorer == PMI else scorer for scorer in scorers)
        with self.evaluating(), torch.inference_mode():
            (memory,) = self.memories(sources)
            scores = [self._scored(memory.of_query(n), each, [*whole]) for n, each in enumerate(sequences)]
            if PMI in scorers:
                distinct = sorted({tuple(sequence) for each in sequences for sequence in each})
                (empty,) = self.memories(self.tokenize([""]))
                of_empty = self._scored(empty, distinct, ["log_probability"])["log_probability"]
                finite = np.where(of_empty > -np.inf, of_empty, 0)  # so that −∞ stays −∞
                log_p = dict(zip(distinct, finite, strict=True))
                for of_query, each in zip(scores, sequences, strict=True):
                    without = np.array([log_p[tuple(sequence)] for sequence in each])
                    of_query[PMI] = of_query["log_probability"] - without
        return [np.stack([of_query[scorer] for scorer in scorers]) for of_query in scores]

    def _scored(
        self, memory: Memory, sequences: Sequence[Sequence[int]], scorers: Sequence[ScoreName]
    ) -> dict[ScoreName, Float[np.ndarray, " n"]]:
        """Score one query's sequences by scorers other than PMI; those of the same states share logits."""
        scores = {scorer: np.empty(len(sequences)) for scorer in scorers}
        most = TOKENS.get(self.device.type, MANY_TOKENS)
        for numbers in by_length([len(sequence) for sequence in sequences], most):
            targets = self.targets([[sequences[n] for n in numbers]]).to(self.device)
            start = memory.of_query(0)
            (states,) = self.decode([start], targets.inputs)
            outputs = self.outputs(states, targets.inputs)
            for scorer in scorers:
                (reading,) = self.readings([states], [start], scorer)
                read = outputs if reading is states else self.outputs(reading, targets.inputs)
                parts = read.score(targets.ids, scorer).where(targets.mask, 0)[0]
                scores[scorer][numbers] = parts.cpu().double().sum(-1).numpy()
        return scores

    def token_parts(self, readings: Readings, targets: Targets, scorer: ScoreName) -> Float[Tensor, "b n m"]:
        """Return the last m target tokens' contributions to rel, from their `readings`; 0 at padding."""
        last = slice(-readings[0].shape[-2], None)
        ids = targets.ids[..., last]
        outputs = [self.outputs(states, targets.inputs) for states in readings]
        parts = _difference([each.score(ids, scorer) for each in outputs])
        return parts.where(targets.mask[..., last], 0)

    def next_scores(
        self, readings: Readings, prefix: Int[Tensor, "b n t"], scorer: ScoreName = "log_probability"
    ) -> Float[Tensor, "b n v"]:
        """Return each next token's contribution to rel after a prefix; −∞ for tokens outside the softmax."""
        outputs = [self.outputs(states, prefix) for states in readings]
        scores = _difference([each.scores(scorer)[..., 0, :] for each in outputs])
        candidates = outputs[0].candidates
        if candidates is None:
            return scores
        full = scores.new_full((*scores.shape[:-1], len(self._input_table)), -torch.inf)
        return full.index_copy(-1, candidates, scores)

    def _softmax_tokens(self) -> list[Tensor | None]:
        """Tokens in the softmax, and which of them it includes at each position; None = all."""
        if self.settings.softmax == "vocabulary":
            return [None, None]
        tokens, offsets = self.identifiers.targets
        candidates, columns = np.unique(tokens, return_inverse=True)
        places = np.arange(len(tokens)) - np.repeat(offsets[:-1], np.diff(offsets))
        allowed = np.zeros((self.identifiers.longest, len(candidates)), dtype=bool)
        allowed[places, columns] = True
        if self.clusters is not None:
            offsets, candidates = self.clusters.expand(candidates)
            allowed = allowed.repeat(np.diff(offsets), axis=1)
        by_place = torch.from_numpy(allowed) if self.settings.softmax == "place" else None
        return [torch.from_numpy(candidates), by_place]

    def target(self, document: int) -> list[int]:
        """Target tokens of a document's identifier in the decoder's vocabulary, end token last."""
        tokens = self.target_tokens[slice(*self.identifiers.offsets[document : document + 2])].tolist()
        return tokens if self.identifiers.end is None else [*tokens, self.identifiers.end]

    def names(self, document: int, *, windows: bool = True) -> list[list[int]]:
        """Return a document's sequences for reranking: its identifier, or windows of `span` of its tokens.

        windows: False for all tokens of a text. A document without tokens has no sequence.
        """
        if windows and self.identifiers.kind == "text":
            places = self.identifiers.windows(document, self.settings.span)
            return [self.target_tokens[place].tolist() for place in places]
        identifier = self.target(document)
        return [identifier] if identifier else []

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """Return readable names of tokens in the decoder's vocabulary."""
        if self.settings.tokens == "own":
            return ["end" if token == self.identifiers.end else str(token) for token in tokens]
        surface = list(tokens) if self.clusters is None else self.clusters.surface[list(tokens)].tolist()
        return self.tokenizer.convert_ids_to_tokens(surface)

    @property
    def target_tokens(self) -> Int[np.ndarray, " t"]:
        """The identifiers' tokens in the decoder's vocabulary."""
        return self.identifiers.tokens if self.clusters is None else self.clusters.labels

    def write(self, folder: Path, *, merged: bool = False) -> None:
        with quiet():
            self.backbone.save_pretrained(folder / "backbone")
        self.tokenizer.save_pretrained(folder / "backbone")
        save_file(self._heads(), folder / HEADS)
        self.identifiers.save(folder)
        write_json(folder / SETTINGS, asdict(self.settings))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Generative:
        folder = Path(folder)
        settle(folder)
        settings = read_settings(GenerativeSettings, folder / SETTINGS, without_sets)
        clusters = None
        with naming(folder / HEADS), safe_open(folder / HEADS, "pt") as heads:
            if settings.tokens == "clusters":
                clusters = Clusters.of(*(heads.get_tensor(f"clusters.{name}") for name in Clusters.STATE))
        model = cls(settings, folder / "backbone", Identifiers.load(folder), clusters)
        load_heads(model, model._heads(), folder / HEADS)
        return model

    def _heads(self) -> dict[str, Tensor]:
        """The weights outside the backbone."""
        return {n: t.contiguous() for n, t in self.state_dict().items() if not n.startswith("backbone.")}


def _difference(scores: list[Tensor]) -> Tensor:
    """Return the first scores minus the second, if there are two; −∞ stays −∞."""
    first, *rest = scores
    return (first - rest[0]).where(first > -torch.inf, -torch.inf) if rest else first
