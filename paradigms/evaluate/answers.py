"""Does a passage contain an answer? The relevance of open-domain question answering.

Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020, and its code: a
passage is relevant if the tokens of an answer are consecutive tokens of its text, the title left out. With a
judgement for each retrieved passage, top-k retrieval accuracy is Success@k, a measure like any other.
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

    Both are compared in canonical decomposition (NFD) and lower case. An answer without tokens is in no text;
    in DPR's code it is in every text.
    """
    tokens = _spaced(text)
    return any(answer.strip() and answer in tokens for answer in map(_spaced, answers))


def with_judgements(split: Split, corpus: Corpus, runs: Iterable[Run]) -> Split:
    """The split with grade 1 for each document of the runs that contains an answer to the query.

    A split without answers is returned unchanged. If it has both answers and judgements, answers count. Only
    measures of retrieved documents, such as Success@k, are correct under these judgements; recall is not.
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
    """The text's tokens with a space around each. No token contains a space, so substrings are token runs."""
    tokens = TOKEN.findall(unicodedata.normalize("NFD", text))
    return f" {' '.join(token.lower() for token in tokens)} "
