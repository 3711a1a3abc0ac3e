"""MIRACL, retrieval in 18 languages, as it is published: one folder of topics and judgements a language.

Zhang et al., "MIRACL: A Multilingual Retrieval Dataset Covering 18 Diverse Languages", TACL 2023. Topics and
judgements (miracl-v1.0-sw) and passages (miracl-corpus-v1.0-sw) are published apart.
"""

import re
from pathlib import Path

from paradigms.data.collection import Collection, assemble, text_of, title_of
from paradigms.data.lines import Document, id_and_text, json_object, read_documents
from paradigms.data.trec import read_judgements

MEASURES = ("nDCG@10", "R@100")
SHARD = re.compile(r"docs-(\d+)\.jsonl(?:\.gz)?")
QRELS = re.compile(r"qrels\.(?P<stem>.*-(?P<split>train|dev|test|test-a|test-b))\.tsv")


def is_miracl(folder: Path) -> bool:
    return (folder / "topics").is_dir() and (folder / "qrels").is_dir()


def read_miracl(folder: Path) -> Collection:
    """Collection of a language: topics/topics.*-<split>.tsv, qrels/qrels.*-<split>.tsv, docs-<n>.jsonl[.gz].

    The passages may lie in the folder, in miracl-corpus-v1.0-<language> beside it, or in that folder inside a
    miracl-corpus beside the folder's parent. FileNotFoundError says where files were looked for, ValueError
    names a bad line.
    """
    folder = folder.resolve()
    found = {
        match["split"]: match["stem"] for match in map(QRELS.fullmatch, _names(folder / "qrels")) if match
    }
    if not found:
        raise FileNotFoundError(f"{folder}/qrels holds no qrels.*-<split>.tsv (MIRACL's layout)")
    splits = [split for split in ("train", "dev", "test", "test-a", "test-b") if split in found]
    documents, stored = read_documents(_shards(folder), _document)
    judged = {split: read_judgements(folder / "qrels" / f"qrels.{found[split]}.tsv") for split in splits}
    return assemble(
        folder.name,
        documents,
        {split: id_and_text(folder / "topics" / f"topics.{found[split]}.tsv") for split in splits},
        {
            split: ((query, document, grade) for query, row in of.items() for document, grade in row.items())
            for split, of in judged.items()
        },
        measures=MEASURES,
        stored=stored,
    )


def _shards(folder: Path) -> list[Path]:
    """The files of passages in the order of their numbers."""
    corpus = folder.name.replace("miracl-", "miracl-corpus-", 1)
    places = [folder, folder.parent / corpus, folder.parent.parent / "miracl-corpus" / corpus]
    for place in places:
        numbered = {int(match[1]): place / match[0] for match in map(SHARD.fullmatch, _names(place)) if match}
        if numbered:
            return [numbered[number] for number in sorted(numbered)]
    looked = ", ".join(map(str, dict.fromkeys(places)))
    raise FileNotFoundError(f"no docs-<n>.jsonl or docs-<n>.jsonl.gz (MIRACL's passages) in any of {looked}")


def _names(folder: Path) -> list[str]:
    """Names of the folder's files, .gz before plain: of two alike the plain one, read last, is taken."""
    return sorted((file.name for file in folder.iterdir()), reverse=True) if folder.is_dir() else []


def _document(line: bytes, where: str) -> Document:
    row = json_object(line, where)
    for key in ("docid", "title", "text"):
        if not isinstance(row.get(key, ""), str):
            raise ValueError(f"{where}: {key!r} is not a string but {row[key]!r}")
    if not row.get("docid"):
        raise ValueError(f'{where}: no "docid"')
    return row["docid"], title_of(row), text_of(row)
