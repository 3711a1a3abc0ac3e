"""Sets of tokens: their part of rel is q←d under the formula, and a search that plans ahead is exact."""

import pytest
import torch
from torch import Tensor

from paradigms.align import DocumentToQuery, one
from paradigms.core import Tokens, rel
from paradigms.data import Corpus
from paradigms.generative.model import Generative
from paradigms.generative.retriever import GenerativeRetriever
from paradigms.generative.ripor import pag
from paradigms.generative.sets import TokenSets
from tests.near import assert_same, assert_same_run
from tests.tiny import WORDS
from tests.tiny_generative import generative, named

QUERIES = {"q1": "the lazy dog", "q2": "a king lived near that river, so they say", "q3": "corn"}
NAMES = [[5, 6], [7], [5, 6], [5, 6, 8, 9], [300], [7, 7], [5, 9]]  # d0 and d2 have one name


def random_sets(documents: int, width: int = 32, seed: int = 0) -> TokenSets:
    """Up to 4 of 9 tokens for each document; the last document has none."""
    g = torch.Generator().manual_seed(seed)
    members = torch.stack([torch.randperm(9, generator=g)[:4] for _ in range(documents)])
    lengths = torch.randint(1, 5, (documents,), generator=g)
    lengths[-1] = 0
    members = members.where(torch.arange(4) < lengths[:, None], 9)
    vectors = torch.randn(9, width, generator=g)  # far from the scale of log p: the set part matters
    return TokenSets(vectors, torch.arange(20, 29), members)


def set_rel(model: Generative, text: str) -> Tensor:
    """The set part of every document, by the formula."""
    assert model.sets is not None
    with torch.inference_mode():
        Q, memory = model.begin(model.tokenize([text]))
        members = model.sets.members[None]
        D = Tokens(model.sets.vectors[members.clamp(max=8)], members < 9)
        return rel(D, Tokens(Q[:, None], memory.mask[:, None]), DocumentToQuery(), one)[0]


def test_a_single_beam_follows_the_document_that_the_plan_puts_far_ahead(seq2seq):
    """Without a plan, one beam follows the first token's score; a plan names the document before decoding."""
    sets = random_sets(len(NAMES))
    model = generative(seq2seq["t5"], named(NAMES), None, sets, set_size=4, beams=1, score="logit")
    assert model.sets is not None
    with torch.no_grad():
        model.sets.vectors *= 1e6
    for text in QUERIES.values():
        planned = set_rel(model, text)
        (scores,) = GenerativeRetriever(model).search({"q": text}).values()
        # Documents with equal sets have equal parts but for the last bits, which depend on the processor.
        assert float(planned[int(next(iter(scores))[1:])]) == pytest.approx(float(planned.max()), rel=1e-12)


def test_a_set_holds_the_rare_tokens_of_its_text(tiny_bert):
    """Frequent in the text and rare in the corpus; ties go to the smaller number."""
    corpus = Corpus(["a", "b", "c"], ["the fox the fox dog dog", "the dog", ""])
    model = pag(tiny_bert, corpus, embedder=tiny_bert, codes=2, set_size=2)
    sets = model.sets
    assert sets is not None
    assert [sorted(sets.labels(model.tokenizer, n)) for n in range(3)] == [["dog", "fox"], ["dog", "the"], []]
    assert sets.all_scores(torch.zeros(1, 3, 32), torch.ones(1, 3, dtype=torch.bool)).tolist() == [[0.0] * 3]


def test_planning_models_are_saved_and_explain_both_parts(seq2seq, tiny_bert, tmp_path):
    corpus = Corpus([f"d{n}" for n in range(5)], [" ".join(WORDS.split()[4 * n :][:5]) for n in range(5)])
    model = pag(seq2seq["t5"], corpus, embedder=tiny_bert, levels=2, codes=3, set_size=3).eval()
    model.save_pretrained(tmp_path / "model")
    loaded = Generative.from_pretrained(tmp_path / "model").eval()
    queries = {"q": " ".join(WORDS.split()[5:8])}
    assert_same_run(GenerativeRetriever(loaded).search(queries), GenerativeRetriever(model).search(queries))
    model = model.double()
    (shown,) = GenerativeRetriever(model).explain(queries["q"], "d1")
    pool = {"q": {"d1": 0.0}}
    assert_same(shown.rel, GenerativeRetriever(model).rerank(queries, pool)["q"]["d1"])
    assert_same(sum(s * a for _, _, s, a in shown.links) + shown.rest, shown.rel)
    assert model.sets is not None
    assert shown.document_tokens[-3:] == model.sets.labels(model.tokenizer, 1)
