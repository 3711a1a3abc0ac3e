"""Read published layouts: MIRACL, LoTTE, and the tab-separated layout of MS MARCO and NQ320K."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from paradigms.data.assembly import assemble
from paradigms.data.collection import Collection, Document, joined
from paradigms.data.lines import Parse, columns, json_document, json_object, read_documents
from paradigms.data.trec import judged_rows
from paradigms.io.checks import check_type
from paradigms.io.gzipped import decoded, existing, names_in, numbered_lines

MIRACL = ("nDCG@10", "R@100")
LOTTE = ("Success@5",)  # measures that their papers report
SHARD = re.compile(r"docs-(\d+)\.jsonl")
QRELS = re.compile(r"qrels\.(?P<stem>.*-(?P<split>train|dev|test|test-a|test-b))\.tsv")
QUESTIONS = re.compile(r"questions\.(?P<split>\w+)\.tsv")
QUERIES = re.compile(r"queries\.[\w.]+\.tsv")
JUDGEMENTS = re.compile(r"(?P<kind>qrels?|triples)\.(?P<split>\w+)(\.[\w.]+)?\.tsv")
PASSAGES = "collection.tsv"


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
