"""Does a passage contain an answer? The relevance of open-domain question answering.

Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020, and its code: the
tokens of an answer are consecutive tokens of the passage's text without its title.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import replace

import regex  # type: ignore[import-untyped]

from paradigms.data import Corpus, Run, Split
from paradigms.data.collection import body

# A run of letters, digits and marks, or any other visible character by itself.
TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def has_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether the tokens of one of the answers are consecutive tokens of the text (NFD, lower case).

    An answer without tokens is in no text; in DPR's code it is in every text.
    """
    tokens = _spaced(text)
    return any(answer.strip() and answer in tokens for answer in map(_spaced, answers))


def with_judgements(split: Split, corpus: Corpus, runs: Iterable[Run]) -> Split:
    """The split with grade 1 for each document of the runs that contains an answer to the query.

    A split without answers is returned unchanged. Only measures of retrieved documents, such as Success@k,
    are correct under these judgements; recall is not.
    """
    if not split.answers:
        return split
    runs = list(runs)
    judgements = {}
    for query in split.queries:
        retrieved = sorted({document for run in runs for document in run.get(query, {})})
        positions = [corpus.position(document) for document in retrieved]
        answers = split.answers.get(query, [])
        judgements[query] = {
            corpus.ids[i]: 1 for i in positions if has_answer(body(corpus.titles[i], corpus[i]), answers)
        }
    return replace(split, judgements=judgements)


def _spaced(text: str) -> str:
    """The text's tokens with a space around each, so that substrings are runs of tokens."""
    tokens = TOKEN.findall(unicodedata.normalize("NFD", text))
    return f" {' '.join(token.lower() for token in tokens)} "
