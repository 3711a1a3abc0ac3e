"""Semantic ids: unique for whatever vectors, the same on any number of threads, near for near documents."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float

from paradigms.data import Corpus
from paradigms.generative.dsi import document_vectors, semantic
from paradigms.generative.identifiers import END, Identifiers
from paradigms.generative.outputs import Outputs
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.ripor import residual, ripor
from tests.near import assert_same, assert_same_run


def names(n: int) -> list[str]:
    return [f"d{i}" for i in range(n)]


def digits(identifiers: Identifiers) -> list[list[int]]:
    return [(identifiers[n] - 2).tolist() for n in range(len(identifiers))]


def blobs(clusters: int, each: int) -> Float[np.ndarray, "n h"]:
    """Far clusters of near vectors; vector i lies in cluster i % clusters."""
    rng = np.random.default_rng(0)
    centres = 100 * np.eye(clusters, 8)
    return np.tile(centres, (each, 1)) + rng.normal(size=(clusters * each, 8))


@given(
    st.lists(st.sampled_from([0.0, 0.1, 1.0, -3.0, 1e20, -1e-20]), min_size=1, max_size=60),
    st.integers(2, 5),
    st.booleans(),
)
def test_ids_are_unique_and_none_begins_another(values: list[float], branching: int, specific: bool) -> None:
    """Equal vectors, too few of them and very different scales among them."""
    vectors = np.array([[value, -value] for value in values])
    results = semantic(vectors, names(len(values)), branching=branching, position_specific=specific)
    ids = {(*results[n].tolist(), END) for n in range(len(results))}
    assert len(ids) == len(values) == len(results)
    assert not any(a != b and a[:-1] == b[: len(a) - 1] for a in ids for b in ids)
    length = int(np.diff(results.offsets).max())
    assert results.vocabulary == (branching * length if specific else branching) + 2
    assert results.end == 1
    assert results.documents == names(len(values))


def test_near_documents_share_a_prefix() -> None:
    rows = digits(semantic(blobs(8, 8), names(64), branching=8))
    by_place = digits(semantic(blobs(8, 8), names(64), branching=8, position_specific=True))
    assert by_place == [[first, 8 + second] for first, second in rows]
    assert [len(row) for row in rows] == [2] * 64
    first = np.array([row[0] for row in rows])
    assert [len(set(first[i::8])) for i in range(8)] == [1] * 8
    assert sorted(first[:8]) == list(range(8))
    assert [row[1] for row in rows] == [i // 8 for i in range(64)]  # in the documents' order


def test_threads_change_no_id_and_are_left_as_they_were() -> None:
    vectors = np.random.default_rng(0).normal(size=(1000, 96)).astype(np.float32)  # no clusters: many ties
    digests = set()
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        digests.add(semantic(vectors, names(1000)).digest)
        assert torch.get_num_threads() == count
    assert len(digests) == 1
    assert semantic(vectors, names(1000), seed=1).digest not in digests


def test_unusable_vectors_are_named() -> None:
    vectors = np.zeros((4, 3))
    vectors[2, 1] = np.nan
    vectors[1, 0] = 1e300  # finite, but not in float32
    with pytest.raises(ValueError, match="2 vectors are not finite, for example the vector of document 'd1'"):
        semantic(vectors, names(4))


def test_a_constant_state_scores_residual_codes_as_dense_retrieval_of_the_quantised_vectors() -> None:
    """rel = s(q)ᵀ Σᵢ E_{i,cᵢ}, and the sum nears the document's vector with every level."""
    vectors = np.random.default_rng(0).normal(size=(60, 8))
    ids, centroids = residual(vectors, names(60), levels=3, codes=8)
    table = torch.from_numpy(np.concatenate([np.zeros((2, 8)), centroids])).double()
    state = torch.randn(8, generator=torch.Generator().manual_seed(0)).double()
    tokens = torch.tensor([[*ids[n].tolist(), END] for n in range(60)])[None]
    rel = Outputs(state.expand(1, 60, 4, 8), table).score(tokens, "logit").sum(-1)[0]
    quantised = table[tokens[0]].sum(1)
    assert_same(rel, quantised @ state)
    errors = [float(np.square(vectors).sum())]
    for level in (1, 2, 3):
        partial = table[tokens[0, :, :level]].sum(1).numpy()
        errors.append(float(np.square(vectors - partial).sum()))
    assert errors == sorted(errors, reverse=True)
    assert errors[3] < errors[0] / 4
    codes = np.stack([ids[n] for n in range(60)])
    assert ((codes - 2) // 8 == np.arange(codes.shape[1])).all()


def test_residual_codes_begin_with_their_centroids(seq2seq: dict[str, Path], tiny_bert: Path) -> None:
    corpus = Corpus(names(6), ["the cat", "a dog", "red fox", "the sea", "a king", "corn field"])
    model = ripor(tiny_bert, corpus, embedder=tiny_bert, levels=2, codes=3, beams=9).eval()
    assert model.settings.score == "logit"
    _, centroids = residual(document_vectors(corpus, tiny_bert, 128), corpus.ids, levels=2, codes=3)
    assert model.table is not None
    assert torch.equal(model.table[2:], torch.from_numpy(centroids) * model.width**0.5)
    assert not model.table[:2].any()
    model = model.double()
    queries = {"q": "the red dog"}
    searched = GenerativeRetriever(model).search(queries)
    pool = {"q": dict.fromkeys(corpus.ids, 0.0)}
    assert_same_run(searched, GenerativeRetriever(model).rerank(queries, pool))
    with pytest.raises(ValueError, match="PAWA replaces the output vectors"):
        ripor(tiny_bert, corpus, pawa_rank=2)
