"""Read open-domain question answering in DPR's layout, where passages that contain an answer are relevant.

Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020 (Natural Questions,
TriviaQA, SQuAD); Sciavolino et al., "Simple Entity-Centric Questions Challenge Dense Retrievers", EMNLP 2021
(EntityQuestions, one file per relation, macro-averaged over relations). Their measure is top-k retrieval
accuracy, here Success@k: the share of questions with an answer in the first k passages.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paradigms.data.assembly import assemble
from paradigms.data.collection import Collection, Document, Problems, joined
from paradigms.data.lines import columns, json_object, read_documents
from paradigms.io.checks import check_type, is_blank, parse_json
from paradigms.io.gzipped import decoded, existing, names_in, numbered_lines

MEASURES = ("Success@20", "Success@100", "Success@5", "Success@1")
PASSAGES = ("psgs_w100.tsv", "passages.tsv")
PLACES = ("", *(f"{above}{split}" for above in ("", "dataset/") for split in ("train", "dev", "test")))
FILE = re.compile(r"(?P<stem>.+?)(?:\.qa)?\.(?P<form>csv|tsv|json|jsonl)")
RELATION = re.compile(r"(?P<relation>P\d+\w*)\.(?P<split>\w+)")

Question = tuple[str, list[str]]


def is_open_qa(folder: Path) -> bool:
    return not set(PASSAGES).isdisjoint(names_in(folder))


def read_open_qa(folder: Path) -> Collection:
    """Read psgs_w100.tsv or passages.tsv (id, text, title) and question files, plain or .gz.

    Question files are in the folder, in its train/, dev/ or test/, or in dataset/train/ and so on. They are
    <split>.csv, .qa.csv or .tsv with a question and a Python list of answers per line, .json with a list of
    objects {"question", "answers"}, or .jsonl. P17.test.json and so on form the split test, by relation.
    """
    folder = folder.resolve()
    passages = next(name for name in PASSAGES if name in names_in(folder))
    documents, stored = read_documents([existing(folder, passages)], _document)
    problems = Problems()
    queries: dict[str, dict[str, str]] = {}
    answers: dict[str, dict[str, list[str]]] = {}
    groups: dict[str, str] = {}
    for stem, path in _question_files(folder).items():
        match = RELATION.fullmatch(stem)
        split = match["split"] if match else stem
        for number, (question, accepted) in enumerate(_questions(path, problems)):
            queries.setdefault(split, {})[f"{stem}-{number}"] = question
            answers.setdefault(split, {})[f"{stem}-{number}"] = accepted
            if match:
                groups[f"{stem}-{number}"] = match["relation"]
    return assemble(
        folder.name,
        documents,
        {split: texts.items() for split, texts in queries.items()},
        {},
        answers=answers,
        groups=groups,
        measures=MEASURES,
        problems=problems,
        stored=stored,
    )


def _question_files(folder: Path) -> dict[str, Path]:
    """Map file stems to paths, in sorted order. Raises ValueError if two files share a stem."""
    files: dict[str, Path] = {}
    for place in PLACES:
        for match in filter(None, map(FILE.fullmatch, names_in(folder / place))):
            if match.string not in PASSAGES:
                path = existing(folder / place, match.string)
                if match["stem"] in files:
                    raise ValueError(f"two question files have one name: {files[match['stem']]} and {path}")
                files[match["stem"]] = path
    if not files:
        raise FileNotFoundError(f"{folder} holds passages, but no file of questions (.csv, .tsv, .json[l])")
    return dict(sorted(files.items()))


def _document(line: bytes, where: str) -> Document | None:
    cells = columns(decoded(line, where), where, 3, quoted=True)
    if cells is None:
        return None
    id, text, title = cells
    return id, title, joined(title, text)


def _questions(path: Path, problems: Problems) -> Iterator[Question]:
    form = Path(path.name.removesuffix(".gz")).suffix
    if form == ".json":
        rows = parse_json("\n".join(line for _, line in numbered_lines(path)), str(path))
        check_type(f"{path}: questions", rows, list[dict])
        for number, row in enumerate(rows):
            yield _question(row, f"{path}, question {number}", problems)
        return
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        row = json_object(line, where) if form == ".jsonl" else _columns(line, where)
        if row is not None:
            yield _question(row, where, problems)


def _question(row: dict[str, Any], where: str, problems: Problems) -> Question:
    """Return the question and answers of a row; published files have the key "answers" or "answer"."""
    answers: Any = row.get("answers", row.get("answer"))
    check_type(f"{where}: question", row.get("question"), str)
    check_type(f"{where}: answers", answers, list[str])
    texts = [answer for answer in answers if not is_blank(answer)]
    if len(texts) < len(answers):
        problems.add("empty answer (left out)", where)
    if not texts:
        problems.add("question without an answer (kept, never answered)", where)
    return row["question"], texts


def _columns(line: str, where: str) -> dict[str, Any] | None:
    cells = columns(line, where, 2, quoted=True)
    if cells is None:
        return None
    question, answers = cells
    try:
        return {"question": question, "answers": ast.literal_eval(answers)}
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: the answers are not a Python list: {answers[:60]!r}") from error
