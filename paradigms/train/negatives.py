"""Mine hard negatives, and score pairs t(q, d) once, for distillation and to detect false negatives.

    run = mine(trained, corpus, split, depth=100)
    examples = build_examples(corpus, split, run, negatives=7, depth=100, seed=0)

Hard negatives are documents that a model ranks highly but that are not judged relevant. Some are relevant,
more of them with a better model: `FalseNegatives` leaves out documents that another model scores highly.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from accelerate import Accelerator, PartialState

from paradigms.baselines.bm25 import BM25, SAVED
from paradigms.data import Corpus, Run, Split, read_run, write_run
from paradigms.data.trec import check_ids
from paradigms.encoder.precision import AUTO
from paradigms.io.files import contents, remove_folder
from paradigms.io.progress import progress_bar
from paradigms.loading import is_reranker, load
from paradigms.retrieve import AllProcesses, Model, Reranking, Retriever, retriever_of
from paradigms.store.building import BUILT, Launch
from paradigms.train.parallel import by_main
from paradigms.trainable import Trainable

# (query id -> ids of documents to score) -> run with at least these scores.
ScorePairs: TypeAlias = Callable[[Mapping[str, Sequence[str]]], Run]

NEGATIVES_DEPTH = 100  # documents per training query from which hard negatives are drawn
PAIRS = 1 << 13  # pairs per file, which is about the most that an interruption can lose


def mine(
    model: Model,
    corpus: Corpus,
    split: Split,
    depth: int = 100,
    *,
    precision: str = AUTO,
    progress: bool = False,
    folder: Path | None = None,
    launch: Launch | None = None,
) -> Run:
    """For each query with a relevant document, find the top `depth` documents by exact search.

    precision: precision of encoding, as in `encoder.precision`. folder: where the documents' vectors are
    stored; None keeps them in memory. launch: processes that divide encoding and search, and see `folder`;
    process 0 returns the run, the others no documents. Raises ValueError if the model cannot search.
    """
    relevant = (query for query, judged in split.judgements.items() if any(g > 0 for g in judged.values()))
    queries = {query: split.queries[query] for query in relevant}
    retriever = retriever_of(model, corpus, folder, precision=precision, progress=progress, launch=launch)
    if launch is not None:
        retriever = AllProcesses(retriever, launch, to_all=False)
    return retriever.search(queries, depth, progress=progress)


@dataclass(eq=False)
class SharedBM25(AbstractContextManager["SharedBM25"]):
    """BM25 that one process builds when it is first used; all processes map its index and divide searches.

    folder: where several processes store the index until `__exit__`; they all see it. ngrams: as in `BM25`.
    """

    corpus: Corpus
    folder: Path  # where several processes store the index until `__exit__`
    accelerator: Accelerator | PartialState
    ngrams: int = 1
    bm25: BM25 | None = None

    def __exit__(self, *error: object) -> None:
        if self.bm25 is not None and self.accelerator.num_processes > 1:
            self.bm25 = None
            if self.accelerator.is_main_process:
                remove_folder(self.folder, SAVED)

    def index(self) -> BM25:
        """Return the index. Every process calls this."""
        if self.bm25 is None:
            build = partial(BM25, self.corpus, ngrams=self.ngrams, progress=True)
            if self.accelerator.num_processes == 1:
                self.bm25 = build()
            else:
                by_main(lambda: build().save(self.folder), self.accelerator)
                self.bm25 = BM25.load(self.folder, self.corpus, just_saved=True)
        return self.bm25

    def search(self, queries: Mapping[str, str], k: int) -> Run:
        """Find the k best documents for each query. Every process calls this and receives the run."""
        if not queries:
            return {}
        searched = AllProcesses(self.index(), self.accelerator)
        return searched.search(queries, k, progress=self.accelerator.is_main_process)


def mined_run(
    open_model: Callable[[], Trainable], corpus: Corpus, split: Split, folder: Path, accelerator: Accelerator
) -> Run:
    """Use a model to find NEGATIVES_DEPTH documents for each query; cache the run in folder/mined.run.

    Every process opens the model; they divide the documents to encode and the search. Raises ValueError if
    the model cannot search, if the file is damaged, or if it cannot hold an id.
    """
    file = folder / "mined.run"
    place = folder / "mined"  # the documents' vectors, if several processes divide them
    check_ids([*split.queries, *corpus.ids], "id")
    if not by_main(file.is_file, accelerator):
        model: Any = open_model().to(accelerator.device)
        mined = mine(
            model,
            corpus,
            split,
            NEGATIVES_DEPTH,
            precision=accelerator.mixed_precision,
            progress=accelerator.is_main_process,
            folder=place if accelerator.num_processes > 1 else None,
            launch=accelerator,
        )
        by_main(lambda: write_run(file, mined, tag=model.name), accelerator)
        if accelerator.is_main_process and place.is_dir():
            remove_folder(place, BUILT)
    run = read_run(file)
    if split.queries and not run:
        raise ValueError(f"{file} is damaged: it holds no query. Delete it, and queries are searched again")
    return run


def score_of(scores: Run, query: str, document: str, whose: str) -> float:
    """Look up t(q, d). Raises ValueError if the pair has no finite score.

    whose: owner of the scores, for the error message.
    """
    score = scores.get(query, {}).get(document)
    if score is None or not math.isfinite(score):
        raise ValueError(
            f"the {whose} has {'no' if score is None else 'an infinite'} score of document {document!r} for "
            f"query {query!r}: its run must score every relevant document and every negative. Give a "
            "model's folder instead of a run to score them"
        )
    return score


def teacher_scores(
    pairs: Sequence[tuple[str, Sequence[str]]], teacher: ScorePairs
) -> list[tuple[float, ...]]:
    """Score the documents of each pair (query id, document ids); the teacher gets each document once.

    Raises ValueError if a document has no score.
    """
    distinct: dict[str, dict[str, None]] = {}
    for query, documents in pairs:
        distinct.setdefault(query, {}).update(dict.fromkeys(documents))
    scores = teacher({query: list(documents) for query, documents in distinct.items()})
    return [
        tuple(score_of(scores, query, document, "teacher") for document in documents)
        for query, documents in pairs
    ]


@dataclass(frozen=True)
class FalseNegatives:
    """d is presumed relevant if t(q, d) ≥ t(q, d⁺) − margin, or if t(q, d) ≥ share · t(q, d⁺).

    These rules are TopK-MarginPos and TopK-PercPos of NV-Retriever (Moreira et al. 2024, arXiv:2407.15831).
    If t(q, d⁺) < 0, as is possible for logits, the rule with `share` is t(q, d) ≥ (2 − share) · t(q, d⁺).
    """

    scores: ScorePairs
    margin: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if (self.margin is None) == (self.share is None):
            raise ValueError(
                "false negatives need a margin below the positive's score or a share of it: set "
                f"one of the two, not margin={self.margin} and share={self.share}"
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"the share of a positive's score must lie in (0, 1], got {self.share}")

    def of(self, query: str, positive: str, candidates: Sequence[str], scores: Run) -> set[str]:
        """Return the candidates that are presumed relevant. Raises ValueError if a candidate has no score."""
        name = "false-negative filter"
        bound = score_of(scores, query, positive, name)
        if self.share is not None:
            bound *= self.share if bound > 0 else 2 - self.share
        bound -= self.margin or 0.0
        return {d for d in candidates if score_of(scores, query, d, name) >= bound}


def pair_scores(
    source: str, file: Path, queries: dict[str, str], corpus: Corpus, accelerator: Accelerator
) -> ScorePairs:
    """Return t from `source`: a TREC run, or a model whose scores are stored in `file` (`scored_once`).

    A model is a folder or hub name of a Hugging Face reranker or of a model that `loading.load` reads.
    Raises FileNotFoundError if the source is neither a run nor a model.
    """
    path = Path(source)
    if path.is_file():
        run = read_run(path)
        return lambda pairs: run
    if not path.is_dir() and source.count("/") != 1:
        raise FileNotFoundError(f"{source} is neither a run, nor a model folder, nor OWNER/NAME on the hub")

    def reranker() -> Retriever:
        model = load(source).to(accelerator.device)
        return Reranking(model, corpus, precision=accelerator.mixed_precision)

    # Models that read pairs can resume within the work; others encode each document once, in one chunk.
    return scored_once(file, reranker, queries, accelerator, PAIRS if is_reranker(source) else None)


def scored_once(
    file: Path,
    load: Callable[[], Retriever],
    queries: Mapping[str, str],
    accelerator: Accelerator,
    pairs: int | None = PAIRS,
) -> ScorePairs:
    """Score each pair once with a reranker, and store all scores in `file`, a TREC run.

    load: creates the reranker; only processes with pairs to score call it. All processes call the returned
    function and split the work into chunks of whole queries, with about `pairs` pairs per chunk (None: one
    chunk). Each chunk's scores stay in a file next to `file` until all chunks are done, so that an
    interrupted run resumes after the last complete chunk. Ids that no run can hold are refused first.
    """
    parts = file.with_suffix(".parts")

    def scores(requested: Mapping[str, Sequence[str]]) -> Run:
        check_ids((id for query, documents in requested.items() for id in (query, *documents)), "id")
        chunks = _chunks(requested, _stored(file, parts), math.inf if pairs is None else pairs)
        first = 1 + max((int(part.stem) for part in parts.glob("*.run")), default=-1)
        accelerator.wait_for_everyone()  # all must see what is missing before anyone writes
        numbers = range(accelerator.process_index, len(chunks), accelerator.num_processes)
        is_main = accelerator.is_main_process
        with progress_bar(is_main and len(chunks) > 1) as bar:
            reranker = load() if numbers else None
            for n in bar.track(numbers, description=f"score pairs: {file.stem}"):
                assert reranker is not None
                reranked = reranker.rerank(queries, chunks[n], progress=is_main and len(chunks) == 1)
                write_run(parts / f"{first + n:06}.run", reranked, tag=file.stem)
        accelerator.wait_for_everyone()
        by_main(join, accelerator)
        return read_run(file)

    def join() -> None:
        if parts.is_dir():
            write_run(file, _stored(file, parts), tag=file.stem)
            remove_folder(parts, contents("*.run"))

    return scores


def _chunks(requested: Mapping[str, Sequence[str]], stored: Run, pairs: int | float) -> list[Run]:
    chunks: list[Run] = []
    room = 0.0  # for pairs in the last chunk
    for query, documents in requested.items():
        missing = {d: 0.0 for d in documents if d not in stored.get(query, {})}
        if not missing:
            continue
        if room <= 0:
            chunks.append({})
            room = pairs
        chunks[-1][query] = missing
        room -= len(missing)
    return chunks


def _stored(file: Path, parts: Path) -> Run:
    stored: Run = {}
    for run in (read_run(f) for f in [file, *sorted(parts.glob("*.run"))] if f.is_file()):
        for query, scores in run.items():
            stored.setdefault(query, {}).update(scores)
    return stored
