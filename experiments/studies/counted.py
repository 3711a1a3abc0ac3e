"""Count the bytes of tensors that live at once, also without data: of encoders and of in-batch scores."""

import weakref
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from paradigms.align import NORMALISERS, Alignment, PoolTopK, QueryToDocument
from paradigms.core import Tokens
from paradigms.encoder.backbone import load_backbone, without_weights
from paradigms.encoder.precision import autocast
from paradigms.encoder.sources import packaged
from paradigms.scoring import in_batch
from paradigms.train.parallel import exchange

STORAGE: Any = UntypedStorage  # `Living` replaces one of its methods


class Living(TorchDispatchMode):
    """Count the bytes of all storages made within the context: `now`, and the largest number, `peak`.

    Of tensors in shards, this process's part counts. number: the value to return wherever code reads a number
    from a tensor, which needs data.
    """

    def __init__(self, number: int | None = None) -> None:
        super().__init__()
        self.number = number
        self.now = 0
        self.peak = 0
        self._bytes: dict[int, int] = {}  # storage -> bytes
        self._ignored: set[int] = set()

    def ignore(self, *tensors: Tensor) -> None:
        """Do not count the storages of these tensors, such as inputs."""
        for tensor in tensors:
            self._count(tensor.untyped_storage(), 0)
            self._ignored.add(tensor.untyped_storage()._cdata)

    def __enter__(self) -> Self:
        self._resize = UntypedStorage.resize_

        def resize(storage: UntypedStorage, size: int) -> UntypedStorage:
            """Shards free gathered weights, and gather them again, in the same storage."""
            self._resize(storage, size)
            if storage._cdata in self._bytes.keys() - self._ignored:
                self._count(storage, size)
            return storage

        STORAGE.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        STORAGE.resize_ = self._resize
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # operations on its local tensor follow
        if self.number is not None and function is torch.ops.aten._local_scalar_dense.default:
            return self.number
        result = function(*arguments, **(keywords or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._bytes:
                    self._count(storage, storage.nbytes())
        return result

    def _count(self, storage: UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key not in self._bytes:
            weakref.finalize(storage, self._free, key)
        self.now += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._bytes.pop(key)
        self._ignored.discard(key)


def score_bytes(
    queries: int,
    documents: int,
    query_tokens: int,
    document_tokens: int,
    dim: int,
    bound: int,
    align: Alignment | None = None,
) -> int:
    """Count the bytes of in-batch scores, forward and backward, besides D and Q.

    align: by default ColBERT's. Scored are the queries of two pieces or, if A is neither a maximum nor XTR's,
    of 16 tiles, and twice as many; each further query takes as much more.
    """
    pairs = documents * query_tokens
    number: int | None = None  # of tokens that a query token retrieves from the pool
    if isinstance(align, PoolTopK):
        number = int(align.k if align.k >= 1 else align.k * documents * document_tokens)
    few = bound // (pairs * in_batch.PAIR_BYTES) + 1
    in_pieces = align is None or number is not None
    if not in_pieces:  # computed again in tiles
        few = 16 * max(1, in_batch.MANY_CELLS // (pairs * document_tokens))

    def tokens(x: int, n: int, length: int) -> Tokens:
        mask = torch.ones(x, n, length, dtype=torch.bool, device="meta")
        return Tokens(torch.empty(x, n, length, dim, device="meta", requires_grad=True), mask)

    def peak(count: int) -> int:
        D = tokens(1, documents, document_tokens)
        Q = tokens(count, 1, query_tokens)
        with Living(number) as living:
            living.ignore(D.vectors, D.mask, Q.vectors, Q.mask)
            # `in_batch_rel` turns autocast off, which these tensors do not know.
            scores = in_batch._rel(D, Q, align or QueryToDocument(), NORMALISERS["one"], None, bound)
            scores.logsumexp(1).sum().backward()
        # Autograd adds pieces' gradients in place, but not within a mode.
        return living.peak - (D.vectors.nbytes if in_pieces and count >= few else 0)

    if queries <= 2 * few:
        return peak(queries)
    first = peak(few)
    return first + (peak(2 * few) - first) * (queries - few) // few


class Counted(NamedTuple):
    """Numbers of weights, and what one text of a length costs."""

    weights: int  # with the rows that fill up shards
    layers: list[int]  # weights of each layer
    buffers: int  # bytes of tensors that are not trained
    copies: int  # bytes of 16-bit copies of weights, which a pass keeps until its backward pass
    text: int  # bytes of activations for a text
    layer: int  # bytes of one layer's activations for a text
    flops: int  # of a text's forward pass


def built(model: str) -> Any:
    """Build an encoder without weights from a config.json, a packaged checkpoint or a model type."""
    with TemporaryDirectory() as folder:
        source = str(packaged(model))
        if not Path(source).is_dir():
            if model not in CONFIG_MAPPING:
                raise SystemExit(
                    f"model={model} is no folder, no packaged encoder and no type of transformers"
                )
            AutoConfig.for_model(model).save_pretrained(folder)
            source = folder
        with without_weights():
            return load_backbone(source)


def counted(backbone: Any, length: int, settings: Any) -> Counted:
    """Count weights, activations and FLOPs with tensors without data. settings: settings of plan.py."""
    layers = [part for part in backbone.modules() if isinstance(part, GradientCheckpointingLayer)]
    with FakeTensorMode():
        # A CPU's attention does not form its matrix.
        exchange(backbone, lambda old: torch.empty(old.shape, dtype=old.dtype, device="cpu"))
        bytes_of = [forward(backbone, texts, length, settings.precision, layers, False) for texts in (1, 2)]
        text = bytes_of[1] - bytes_of[0]
        saved = text
        if settings.recompute:
            saved, less = (forward(backbone, n, length, settings.precision, layers, True) for n in (2, 1))
            saved -= less
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            backbone(**inputs(1, length))
    rows = settings.gpus if settings.shards else 1

    def size(module: nn.Module) -> int:
        return sum(-(-len(w) // rows) * rows * (w.numel() // len(w)) for w in module.parameters())

    width: int = backbone.config.hidden_size
    vectors = 2 * 4 * length * settings.dim  # of the projection, before and after normalisation
    return Counted(
        size(backbone) + -(-settings.dim // rows) * rows * width,
        [size(layer) for layer in layers],
        sum(buffer.nbytes for buffer in backbone.buffers()),
        0 if settings.recompute else bytes_of[0] - text,
        saved + vectors,
        text // max(1, len(layers)),
        flops.get_total_flops() + 2 * length * width * settings.dim,
    )


def inputs(texts: int, length: int) -> dict[str, Tensor]:
    ids = torch.zeros(texts, length, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def forward(
    backbone: Any, texts: int, length: int, precision: str, layers: list[Any], recompute: bool
) -> int:
    """Return the bytes that a forward pass leaves for the backward pass."""
    for layer in layers:
        layer.gradient_checkpointing = recompute
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
    backbone.train()
    batch = inputs(texts, length)
    with Living() as living, autocast(torch.device("cpu"), precision, copies=False):
        living.ignore(*backbone.parameters(), *backbone.buffers())
        output = backbone(**batch)[0]
        bytes_kept = living.now
    del output
    return bytes_kept
