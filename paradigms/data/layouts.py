"""Read published layouts: MIRACL, LoTTE, MS MARCO and NQ320K, DPR and EntityQuestions."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from paradigms.data.assembly import assemble
from paradigms.data.beir import SPLITS, is_beir, read_folder
from paradigms.data.collection import Collection, Document, Problems, joined
from paradigms.data.lines import Parse, columns, json_document, read_documents
from paradigms.data.trec import judged_rows
from paradigms.io.checks import check_type, is_blank, json_object, parse_json
from paradigms.io.gzipped import decoded, existing, names_in, numbered_lines

# Measures that their papers report; DPR's top-k accuracy is Success@k.
MIRACL = ("nDCG@10", "R@100")
LOTTE = ("Success@5",)
OPEN_QA = ("Success@20", "Success@100", "Success@5", "Success@1")
SHARD = re.compile(r"docs-(\d+)\.jsonl")
QRELS = re.compile(r"qrels\.(?P<stem>.*-(?P<split>train|dev|test|test-a|test-b))\.tsv")
QUESTIONS = re.compile(r"questions\.(?P<split>\w+)\.tsv")
QUERIES = re.compile(r"queries\.[\w.]+\.tsv")
JUDGEMENTS = re.compile(r"(?P<kind>qrels?|triples)\.(?P<split>\w+)(\.[\w.]+)?\.tsv")
PASSAGES = "collection.tsv"
QA_PASSAGES = ("psgs_w100.tsv", "passages.tsv")
PLACES = ("", *(f"{above}{split}" for above in ("", "dataset/") for split in SPLITS))
FILE = re.compile(r"(?P<stem>.+?)(?:\.qa)?\.(?P<form>csv|tsv|json|jsonl)")
RELATION = re.compile(r"(?P<relation>P\d+\w*)\.(?P<split>\w+)")


def is_miracl(folder: Path) -> bool:
    return (folder / "topics").is_dir() and (folder / "qrels").is_dir()


def read_miracl(folder: Path) -> Collection:
    """Read a language of MIRACL: topics/topics.*-<split>.tsv, qrels/qrels.*-<split>.tsv, docs-<n>.jsonl.

    Zhang et al., "MIRACL: A Multilingual Retrieval Dataset Covering 18 Diverse Languages", TACL 2023.
    Passages, which are published separately, may be in the folder, in miracl-corpus-v1.0-<language> next to
    it, or in a folder of that name inside a miracl-corpus folder next to the parent.
    """
    folder = folder.resolve()
    matches = filter(None, map(QRELS.fullmatch, names_in(folder / "qrels")))
    stems = {match["split"]: match["stem"] for match in matches}
    if not stems:
        raise FileNotFoundError(f"{folder}/qrels holds no qrels.*-<split>.tsv (MIRACL's layout)")
    splits = [split for split in ("train", "dev", "test", "test-a", "test-b") if split in stems]
    documents, stored = read_documents(_shards(folder), json_document)
    return assemble(
        folder.name,
        documents,
        {split: _pairs(existing(folder / "topics", f"topics.{stems[split]}.tsv")) for split in splits},
        {split: judged_rows(existing(folder / "qrels", f"qrels.{stems[split]}.tsv")) for split in splits},
        measures=MIRACL,
        stored=stored,
    )


def _shards(folder: Path) -> list[Path]:
    """Return the passage files, sorted by number."""
    corpus = folder.name.replace("miracl-", "miracl-corpus-", 1)
    places = [folder, folder.parent / corpus, folder.parent.parent / "miracl-corpus" / corpus]
    for place in places:
        numbered = {int(match[1]): match[0] for match in map(SHARD.fullmatch, names_in(place)) if match}
        if numbered:
            return [existing(place, numbered[number]) for number in sorted(numbered)]
    looked = ", ".join(map(str, dict.fromkeys(places)))
    raise FileNotFoundError(f"no docs-<n>.jsonl or docs-<n>.jsonl.gz (MIRACL's passages) in any of {looked}")


def is_lotte(folder: Path) -> bool:
    return PASSAGES in names_in(folder)


def read_lotte(folder: Path) -> Collection:
    """Read a LoTTE folder <domain>/<dev or test>, with the splits search and forum.

    Santhanam et al., "ColBERTv2: Effective and Efficient Retrieval via Lightweight Late Interaction", NAACL
    2022. Files are collection.tsv (id, passage) and, for each split, questions.<split>.tsv (id, question) and
    qas.<split>.jsonl, where answer_pids are the relevant passages. Splits reuse ids for different questions.
    """
    folder = folder.resolve()
    splits = [match["split"] for match in map(QUESTIONS.fullmatch, names_in(folder)) if match]
    if not splits:
        raise FileNotFoundError(f"{folder} holds no questions.<split>.tsv (LoTTE's layout)")
    splits.sort(key=lambda split: (split != "search", split))
    documents, stored = read_documents([existing(folder, PASSAGES)], _passage)
    return assemble(
        f"{folder.parent.name}-{folder.name}",
        documents,
        {split: _pairs(existing(folder, f"questions.{split}.tsv")) for split in splits},
        {split: _answers(existing(folder, f"qas.{split}.jsonl")) for split in splits},
        measures=LOTTE,
        stored=stored,
    )


def _passage(line: bytes, where: str) -> Document | None:
    cells = columns(decoded(line, where), where, 2)
    return None if cells is None else (cells[0], "", cells[1])


def _answers(path: Path) -> Iterator[tuple[str, str, int]]:
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        row = json_object(line, where)
        check_type(f"{where}: qid", row.get("qid"), str | int)
        check_type(f"{where}: answer_pids", row.get("answer_pids"), list[str | int])
        yield from ((str(row["qid"]), str(passage), 1) for passage in row["answer_pids"])


def is_msmarco(folder: Path) -> bool:
    return is_lotte(folder) and any(map(QUERIES.fullmatch, names_in(folder)))


def read_msmarco(folder: Path) -> Collection:
    """Read collection.tsv (id, text, and perhaps a title) and queries.<split>.tsv (id, text).

    Nguyen et al., "MS MARCO: A Human Generated MAchine Reading COmprehension Dataset", 2016. The layout is
    ColBERT's. The code of Wu et al. 2024 (arXiv:2404.00684, Table 4) uses it for NQ320K and a subset of MS
    MARCO's documents. Documents have titles if the first line of collection.tsv has three columns.

    queries.all.tsv replaces all other query files. Judgements are qrels.<split>.tsv or qrel.<split>.tsv
    (query, 0, document, grade) or triples.<split>.tsv (query, a relevant document, others); other words may
    follow the split, as in queries.dev.small.tsv. Without a split `test`, `dev` becomes `test`, as in papers.
    Raises ValueError if a split has no judged query with a text.
    """
    folder = folder.resolve()
    names = names_in(folder)
    matches = [match for match in map(JUDGEMENTS.fullmatch, names) if match]
    matches.sort(key=lambda match: match["kind"] != "triples")  # qrels replace triples of the same split
    files = {match["split"]: existing(folder, match.string) for match in matches}
    if not files:
        raise FileNotFoundError(f"{folder} holds no qrels.<split>.tsv and no triples.<split>.tsv")
    if "dev" in files and "test" not in files:
        files["test"] = files.pop("dev")
    every = "queries.all.tsv"
    query_files = [every] if every in names else list(filter(QUERIES.fullmatch, names))
    queries = [pair for name in query_files for pair in _pairs(existing(folder, name))]
    with_text = {id for id, _ in queries}
    judgements: dict[str, Iterable[tuple[str, str, int]]] = {}
    for split, file in sorted(files.items()):
        rows = judgements[split] = list(_judgements(file))
        if rows and not any(query in with_text for query, _, _ in rows):
            read = ", ".join(query_files) or "no queries.<split>.tsv"
            raise ValueError(f"{file} judges no query that has a text; queries were read from: {read}")
    passages = existing(folder, PASSAGES)
    _, first = next(numbered_lines(passages), (0, ""))
    parse: Parse = _titled if first.count("\t") == 2 else _passage
    documents, stored = read_documents([passages], parse)
    return assemble(folder.name, documents, queries, judgements, stored=stored)


def _titled(line: bytes, where: str) -> Document | None:
    """Parse a line of id, text and title; the title follows the last tab, and may be missing."""
    document = _passage(line, where)
    if document is None or "\t" not in document[2]:
        return document
    text, _, title = (part.strip() for part in document[2].rpartition("\t"))
    return document[0], title, joined(title, text)


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    if not path.name.startswith("triples"):
        return judged_rows(path)
    pairs = ((query, rest.split("\t", 1)[0].strip()) for query, rest in _pairs(path))
    return ((query, document, 1) for query, document in dict.fromkeys(pairs))


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of each line; all after the first tab is text."""
    for number, line in numbered_lines(path):
        if cells := columns(line, f"{path}, line {number}", 2):
            yield cells[0], cells[1]


def is_open_qa(folder: Path) -> bool:
    return not set(QA_PASSAGES).isdisjoint(names_in(folder))


def read_open_qa(folder: Path) -> Collection:
    """Read psgs_w100.tsv or passages.tsv (id, text, title) and question files, plain or .gz.

    Passages that contain an answer are relevant. Karpukhin et al., "Dense Passage Retrieval for Open-Domain
    Question Answering", EMNLP 2020; Sciavolino et al., "Simple Entity-Centric Questions Challenge Dense
    Retrievers", EMNLP 2021 (EntityQuestions, one file per relation, macro-averaged over relations).

    Question files are in the folder, in its train/, dev/ or test/, or in dataset/train/ and so on. They are
    <split>.csv, .qa.csv or .tsv with a question and a Python list of answers per line, .json with a list of
    objects {"question", "answers"}, or .jsonl. P17.test.json and so on form the split test, by relation.
    """
    folder = folder.resolve()
    passages = next(name for name in QA_PASSAGES if name in names_in(folder))
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
        measures=OPEN_QA,
        problems=problems,
        stored=stored,
    )


def _question_files(folder: Path) -> dict[str, Path]:
    """Map file stems to paths, in sorted order. Raises ValueError if two files share a stem."""
    files: dict[str, Path] = {}
    for place in PLACES:
        for match in filter(None, map(FILE.fullmatch, names_in(folder / place))):
            if match.string not in QA_PASSAGES:
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


def _questions(path: Path, problems: Problems) -> Iterator[tuple[str, list[str]]]:
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


def _question(row: dict[str, Any], where: str, problems: Problems) -> tuple[str, list[str]]:
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


# Name and files of a layout -> (whether a folder has it, its reader).
LAYOUTS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], Collection]]] = {
    "BEIR (corpus.jsonl, queries.jsonl, qrels/<split>.tsv)": (is_beir, read_folder),
    "MIRACL (topics/, qrels/, docs-<n>.jsonl.gz)": (is_miracl, read_miracl),
    "MS MARCO and NQ320K (collection.tsv, queries.<split>.tsv, qrels.<split>.tsv)": (
        is_msmarco,
        read_msmarco,
    ),
    "LoTTE (collection.tsv, questions.<split>.tsv, qas.<split>.jsonl)": (is_lotte, read_lotte),
    "DPR and EntityQuestions (psgs_w100.tsv, questions in .csv or .json)": (is_open_qa, read_open_qa),
}
