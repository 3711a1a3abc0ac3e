"""Does a passage contain an answer? The relevance of open-domain question answering.

Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020, and its code: the
tokens of an answer stand in the passage's text, without its title, one after the other. With a judgement for
each retrieved passage, top-k retrieval accuracy is Success@k, and everything that measures a run can do so.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import replace

import regex  # type: ignore[import-untyped]

from paradigms.data import Corpus, Run, Split
from paradigms.data.collection import body

# A run of letters, digits and marks, or any other visible character by itself.
TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether the tokens of one of the answers are consecutive tokens of the text.

    Both in canonical decomposition (NFD) and lower case. An answer without a token is in no text, though
    DPR's code finds it in each.
    """
    tokens = _spaced(text)
    return any(answer.strip() and answer in tokens for answer in map(_spaced, answers))


def with_judgements(split: Split, corpus: Corpus, runs: Iterable[Run]) -> Split:
    """The split with grade 1 for each document of the runs that contains an answer to the query.

    A split without answers is returned as it is: it has its judgements. Where it has both, answers count.
    Measures that see only what was retrieved (Success@k) are right under these judgements, recall is not.
    """
    if not split.answers:
        return split
    runs = list(runs)
    judgements = {}
    for query in split.queries:
        retrieved = sorted({document for run in runs for document in run.get(query, {})})
        positions = {document: corpus.position(document) for document in retrieved}
        answers = split.answers.get(query, [])
        judgements[query] = {
            document: 1
            for document, i in positions.items()
            if has_answer(body(corpus.titles[i], corpus[i]), answers)
        }
    return replace(split, judgements=judgements)


def _spaced(text: str) -> str:
    """The text's tokens with a space around each: no token holds one, so substrings are runs of tokens."""
    tokens = TOKEN.findall(unicodedata.normalize("NFD", text))
    return f" {' '.join(token.lower() for token in tokens)} "
