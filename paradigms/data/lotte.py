"""LoTTE, passages of StackExchange by topic, as it is published: a folder <domain>/<dev or test>.

Santhanam et al., "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late Interaction", NAACL 2022.
A folder has two sets of questions over its passages, from searches and from the forum, measured apart.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from paradigms.data.collection import Collection, assemble
from paradigms.data.lines import Document, decoded, id_and_text, in_two, json_object, read_documents
from paradigms.io.gzipped import numbered_lines

MEASURES = ("Success@5",)
QUESTIONS = re.compile(r"questions\.(?P<split>\w+)\.tsv")


def is_lotte(folder: Path) -> bool:
    return (folder / "collection.tsv").is_file()


def read_lotte(folder: Path) -> Collection:
    """Collection of collection.tsv (id, passage), with the splits search and forum.

    Each split is questions.<split>.tsv (id, question) and qas.<split>.jsonl, where answer_pids are the
    relevant passages; an id names another question in either. ValueError names file and line,
    FileNotFoundError a file.
    """
    folder = folder.resolve()
    names = sorted(file.name for file in folder.iterdir())
    splits = [match["split"] for match in map(QUESTIONS.fullmatch, names) if match]
    if not splits:
        raise FileNotFoundError(f"{folder} holds no questions.<split>.tsv (LoTTE's layout)")
    splits.sort(key=lambda split: (split != "search", split))
    documents, stored = read_documents([folder / "collection.tsv"], _document)
    return assemble(
        f"{folder.parent.name}-{folder.name}",
        documents,
        {split: id_and_text(folder / f"questions.{split}.tsv") for split in splits},
        {split: _relevant(folder / f"qas.{split}.jsonl") for split in splits},
        measures=MEASURES,
        stored=stored,
    )


def _document(line: bytes, where: str) -> Document:
    id, text = in_two(decoded(line, where), where)
    return id, "", text


def _relevant(path: Path) -> Iterator[tuple[str, str, int]]:
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        row = json_object(line, where)
        query, passages = row.get("qid"), row.get("answer_pids")
        if query is None or not isinstance(passages, list):
            raise ValueError(f'{where}: not JSON with "qid" and a list "answer_pids": {line[:60]!r}')
        yield from ((str(query), str(passage), 1) for passage in passages)
