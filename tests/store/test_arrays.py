"""Vectors of others: numpy's and Arrow's arrays become D and Q, are searched exactly, and come out again."""

import numpy as np
import pyarrow as pa
import pytest
from datasets import Array2D, Dataset, Features, Value

from paradigms.align import EqualIds, QueryToDocument
from paradigms.find import Index, Store, kinds
from paradigms.recipe import Recipe
from paradigms.store.arrays import as_tokens, parts, to_arrow
from tests.near import assert_same

H, LENGTHS = 16, (3, 1, 5, 2)
RECIPE = Recipe("theirs", QueryToDocument(), "one")


def random_vectors(lengths: tuple[int, ...], seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((length, H)).astype(np.float16) for length in lengths]


D, Q = random_vectors(LENGTHS, 0), random_vectors((2, 4), 1)
IDS = [f"d{n}" for n in range(len(D))]
LISTS = [[row.tolist() for row in text] for text in D]
FIXED = pa.array(LISTS, pa.list_(pa.list_(pa.float32(), H)))
FORMS = {
    "numpy": D,
    "lists": LISTS,
    "arrow": pa.array(LISTS, pa.large_list(pa.large_list(pa.float64()))),
    "arrow, fixed size, float16": pa.array(LISTS, pa.list_(pa.list_(pa.float16(), H))),
    "arrow, a slice of chunks": pa.chunked_array([FIXED[:1], FIXED, FIXED])[1:5],
    "datasets": Dataset.from_dict({"x": LISTS}).data["x"],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_tokens(form):
    tokens = as_tokens(FORMS[form])
    assert tokens.mask[0].sum(-1).tolist() == list(LENGTHS)
    assert (tokens.vectors[tokens.mask].numpy() == np.concatenate(D)).all()


def test_one_vector_a_text_and_terms():
    vectors = np.random.default_rng(0).standard_normal((5, H))
    for form in (
        vectors,
        list(vectors),
        pa.array(vectors.tolist()),
        pa.FixedSizeListArray.from_arrays(vectors.ravel(), H),
    ):
        tokens = as_tokens(form, "query")
        assert tokens.vectors.shape == (5, 1, 1, H)
        assert_same(tokens.vectors[:, 0, 0], vectors)
    square = Dataset.from_dict({"x": vectors.reshape(1, 5, H)}, Features({"x": Array2D((5, H), "float64")}))
    assert_same(as_tokens(square.data["x"]).vectors[0, 0], vectors)
    weights, ids = [[1.0, 0.5], [2.0]], [[7, 9], [9]]
    for form_of in (lambda x: x, pa.array):
        terms = {"vectors": form_of(weights), "token_ids": form_of(ids)}
        build = {"paradigm": "theirs", "dim": 1, "fields": ("vectors", "ids")}
        store = Store.build_from(kinds.inverted(16), parts(["a", "b"], **terms), **build)
        queries = as_tokens([[3.0]], "query", ids=[[9]])
        assert Index(store).search_tokens(Recipe("t", EqualIds(), "one"), queries, 2) == [
            {"b": 6.0, "a": 1.5}
        ]


def test_arrow_out_and_in_again(tmp_path):
    salience = [np.full(length, 0.5, np.float32) for length in LENGTHS]
    token_ids = [np.arange(length) for length in LENGTHS]
    documents = parts(pa.array(IDS), D, token_ids=token_ids, salience=salience)
    common = {"paradigm": "theirs", "dim": H, "fields": ("vectors", "ids", "salience")}
    store = Store.build_from(kinds.exact(), documents, tmp_path / "index", **common).delete(["d1"])
    table = to_arrow(store)
    again = parts(table["id"], table["vectors"], token_ids=table["ids"], salience=table["salience"])
    copy = Store.build_from(kinds.exact(), again, **common)
    assert copy.ids == ["d0", "d2", "d3"]
    assert to_arrow(copy).equals(table)
    assert Dataset(table).features["id"] == Value("string")
    empty = to_arrow(store.delete(["d0", "d2", "d3"]))
    assert len(empty) == len(to_arrow(Store.build_from(kinds.exact(), [], paradigm="x", dim=2))) == 0
    assert empty.schema == table.schema
    assert list(parts([], [])) == []


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([np.zeros((1, 2)), np.zeros((1, 3))], "vectors of 2, 3 numbers"),
        ([np.zeros((1, 2, 3))], "an array"),
        ([["a"]], "no numbers"),
        (pa.array([[[1.0], [2.0, 3.0]]]), "vectors of"),
        (pa.array([[[1.0], None]]), "missing"),
        (pa.array([[[1.0, None]]]), "missing"),
        (pa.array([1.0]), "no list"),
        (pa.array([{"a": 1.0}]), "not a list"),
    ],
)
def test_wrong_arrays_are_refused(vectors, message):
    with pytest.raises(ValueError, match=f"vectors: .*{message}"):
        as_tokens(vectors)


def test_numbers_must_agree():
    with pytest.raises(ValueError, match="4 ids need as many vectors, not 2"):
        list(parts(IDS, Q))
    with pytest.raises(ValueError, match="ids are of"):
        as_tokens(Q, "query", ids=[[1], [1, 2, 3, 4]])
