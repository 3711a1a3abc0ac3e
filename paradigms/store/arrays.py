"""Convert numpy and Arrow arrays of token vectors to D and Q, and stored tokens to arrays.

    store = Store.build_from(exact(), parts(ids, vectors), "folder", paradigm="mine", dim=128)
    Index(store).search_tokens(Recipe("mine", QueryToDocument(), "one"), as_tokens(queries, "query"), 10)
    pyarrow.parquet.write_table(to_arrow(store), "vectors.parquet")

The vectors of n texts are given as n arrays [l, h], one array [n, h] (a vector per text) or one array [n, l,
h]. An Arrow array contains lists of vectors, or a vector per text, such as a column of `datasets`
(`dataset.data["x"]`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from paradigms.core import Tokens
from paradigms.encoder.settings import Side
from paradigms.store.shards import SHARD
from paradigms.store.store import BLOCK, Store

if TYPE_CHECKING:
    import pyarrow


def as_tokens(vectors: Any, side: Side = "document", *, ids: Any = None, salience: Any = None) -> Tokens:
    """Pad the vectors of n texts to D [1, n, l, h] or Q [n, 1, l, h], in float32 or float64.

    vectors: see the module's description; if ids are given, each token may also be a single number (term
    weight, h = 1). ids: an integer per token. salience: a number ≥ 0 per token. Raises ValueError, naming the
    argument, if axes, h or the numbers of tokens do not fit, or values are missing.
    """
    rows, lengths = _rows("vectors", vectors, 1 if ids is None else 2)
    rows = rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)
    mask = np.arange(max(1, int(lengths.max(initial=0)))) < lengths[:, None]

    def padded(values: np.ndarray) -> Tensor:
        full = np.zeros((*mask.shape, *values.shape[1:]), values.dtype)
        full[mask] = values
        return torch.from_numpy(full).unsqueeze(0 if side == "document" else 1)

    fields: dict[str, Any] = {"vectors": padded(rows), "mask": padded(np.ones(len(rows), bool))}
    for name, values, dtype in (("ids", ids, np.dtype(np.int64)), ("salience", salience, rows.dtype)):
        if values is not None:
            column, counts = _rows(name, values, 2)
            if not np.array_equal(counts, lengths):
                raise ValueError(f"{name} are of {counts[:3]} … tokens, where vectors are of {lengths[:3]} …")
            fields[name] = padded(column[:, 0].astype(dtype))
    return Tokens(**fields)


def parts(
    ids: Sequence[str] | pyarrow.Array, vectors: Any, *, token_ids: Any = None, salience: Any = None
) -> Iterator[tuple[list[str], Tokens]]:
    """Yield batches of documents for `Store.build_from` and `Store.add_from`, padding one batch at a time.

    vectors, token_ids, salience: see `as_tokens`. Raises ValueError if their lengths differ from that of ids.
    """
    for name, values in (("vectors", vectors), ("token_ids", token_ids), ("salience", salience)):
        if values is not None and len(values) != len(ids):
            raise ValueError(f"{len(ids)} ids need as many {name}, not {len(values)}")
    for start in range(0, len(ids), SHARD):
        part = slice(start, start + SHARD)
        part_ids = ids[part]
        names = part_ids.to_pylist() if hasattr(part_ids, "to_pylist") else [str(id) for id in part_ids]
        more_ids, weights = (None if values is None else values[part] for values in (token_ids, salience))
        yield names, as_tokens(vectors[part], ids=more_ids, salience=weights)


def to_arrow(store: Store) -> pyarrow.Table:
    """Return a table of the documents that are not deleted: id, vectors, and, if stored, ids and salience.

    Each entry of the column `vectors` is a list of float16 vectors of h numbers.
    `datasets.Dataset(to_arrow(store))` makes a dataset of the table.
    """
    import pyarrow as pa

    batches = []
    names = [name for name in ("ids", "salience") if name in store.manifest["fields"]]
    living = np.flatnonzero(store.living)
    for rows in store.blocks(BLOCK, living) if len(living) else [living]:
        tokens = store.tokens(rows)
        ends = pa.array(np.concatenate([[0], tokens.mask[0].sum(-1).cumsum(-1).numpy()]), pa.int32())
        flat = tokens.vectors[tokens.mask].half().numpy()
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), store.dim)
        columns = {
            "id": pa.array(store.names(rows), pa.string()),
            "vectors": pa.ListArray.from_arrays(ends, vectors),
        }
        for name in names:
            values = getattr(tokens, name)[tokens.mask].numpy()
            columns[name] = pa.ListArray.from_arrays(ends, pa.array(values))
        batches.append(pa.table(columns))
    return pa.concat_tables(batches)


def _rows(name: str, values: Any, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of all texts, [tokens, h], and the number of tokens per text, [n].

    least: how to interpret a text given as a 1-D array: if 1, as a single vector; if 2, as tokens with h = 1.
    """
    if hasattr(values, "null_count"):
        return _arrow_rows(name, values, least)
    texts = [np.asarray(text) for text in values]
    axes = {text.ndim for text in texts}
    if len(axes) > 1 or not axes <= {1, 2}:
        raise ValueError(f"{name}: each text needs an array [l, h], or [h] for one vector; axes are {axes}")
    if axes == {1}:
        texts = [text[None] if least == 1 else text[:, None] for text in texts]
    widths = {text.shape[1] for text in texts}
    if len(widths) > 1:
        raise ValueError(f"{name}: vectors of {', '.join(map(str, sorted(widths)))} numbers, not of one h")
    flat = np.concatenate(texts) if texts else np.zeros((0, 1), np.float32)
    return _numbers(name, flat), np.array([len(text) for text in texts], np.int64)


def _arrow_rows(name: str, values: Any, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Do the work of `_rows` for an Arrow array, which is copied only if it has multiple chunks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    array = array.storage if isinstance(array, pa.ExtensionArray) else array  # of datasets.Array2D
    counts = []
    while pa.types.is_nested(array.type):
        if not hasattr(array, "value_lengths") or array.null_count:
            raise ValueError(f"{name}: {array.type} is not a list, or has {array.null_count} missing values")
        counts.append(np.asarray(pc.list_value_length(array)).astype(np.int64))
        array = array.flatten()
    if array.null_count or not 1 <= len(counts) <= 2:
        raise ValueError(f"{name}: {values.type} is no list of vectors, or has missing values")
    flat = array.to_numpy(zero_copy_only=False)
    if len(counts) == 1:
        counts = [np.ones_like(counts[0]), counts[0]] if least == 1 else [counts[0], np.ones(len(flat), int)]
    lengths, widths = counts
    if len(np.unique(widths)) > 1:
        raise ValueError(f"{name}: vectors of {np.unique(widths).tolist()} numbers, not of one h")
    return _numbers(name, flat.reshape(-1, widths[0] if len(widths) else 1)), lengths


def _numbers(name: str, flat: np.ndarray) -> np.ndarray:
    if flat.dtype.kind not in "fiu":
        raise ValueError(f"{name}: {flat.dtype} are no numbers")
    return flat
