"""t(q, d): the scores that training learns from beside the judgements, from a run or from another model."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from accelerate import Accelerator

from paradigms.baselines.cross_attention import HEAD, is_classifier
from paradigms.data import Corpus, Run, read_run, write_run
from paradigms.evaluate.reranking import rerank
from paradigms.io.progress import progress_bar
from paradigms.registry import load
from paradigms.train.state import by_main

# Query id -> document ids whose scores are wanted -> their scores, and maybe others.
ScorePairs: TypeAlias = Callable[[Mapping[str, Sequence[str]]], Run]

Rerank: TypeAlias = Callable[..., Run]  # (run, *, progress) -> the scores of the run's pairs
PAIRS = 1 << 13  # scored between two files: what an interruption costs at most


def score_of(scores: Run, query: str, document: str, whose: str) -> float:
    """t(q, d). ValueError names the pair that has no finite score."""
    score = scores.get(query, {}).get(document)
    if score is None or not math.isfinite(score):
        raise ValueError(
            f"the {whose} has {'no' if score is None else 'an infinite'} score of document {document!r} for "
            f"query {query!r}: its run needs one of every relevant document and of every negative; a model's "
            "folder in place of a run scores what is needed"
        )
    return score


@dataclass(frozen=True)
class FalseNegatives:
    """d is taken to be relevant where t(q, d) ≥ t(q, d⁺) − margin, or where t(q, d) ≥ share · t(q, d⁺).

    Moreira et al. 2024 (arXiv:2407.15831), NV-Retriever: TopK-MarginPos and TopK-PercPos. Where t(q, d⁺) < 0,
    as logits may be, the share's rule is t(q, d) ≥ (2 − share) · t(q, d⁺).
    """

    scores: ScorePairs
    margin: float | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if (self.margin is None) == (self.share is None):
            raise ValueError(
                "false negatives score above a margin below the positive's score, or a share of it: set "
                f"one of the two, not margin={self.margin} and share={self.share}"
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"the share of a positive's score must lie in (0, 1], got {self.share}")

    def of(self, query: str, positive: str, candidates: Sequence[str], scores: Run) -> set[str]:
        """The candidates that the rule takes to be relevant; ValueError names one without a score."""
        name = "false-negative filter"
        bound = score_of(scores, query, positive, name)
        if self.share is not None:
            bound *= self.share if bound > 0 else 2 - self.share
        bound -= self.margin or 0.0
        return {d for d in candidates if score_of(scores, query, d, name) >= bound}


def pair_scores(
    source: str, file: Path, queries: dict[str, str], corpus: Corpus, accelerator: Accelerator
) -> ScorePairs:
    """t of `source`: a TREC run, or what a model scores once and keeps in `file` (`scored_once`).

    A model is a folder or hub name: a Hugging Face reranker, or what `registry.load` reads. FileNotFoundError
    where the source is none of these.
    """
    path, precision = Path(source), accelerator.mixed_precision
    if path.is_file():
        run = read_run(path)
        return lambda wanted: run
    if not path.is_dir() and source.count("/") != 1:
        raise FileNotFoundError(f"{source} is no run, no model folder and no OWNER/NAME on the hub")

    def model() -> Rerank:
        return partial(rerank, load(source).to(accelerator.device), queries, corpus, precision=precision)

    # What reads pairs goes on where it was interrupted; other models encode each document once, in one turn.
    reads_pairs = is_classifier(source) or (path / HEAD).is_file()
    return scored_once(file, model, accelerator, PAIRS if reads_pairs else None)


def scored_once(
    file: Path, load: Callable[[], Rerank], accelerator: Accelerator, pairs: int | None = PAIRS
) -> ScorePairs:
    """The scores of a model, of each pair once: all that it ever gave are kept in `file`, a TREC run.

    load() is called by a process that has pairs to score. All processes call the result and share the work,
    in turns of whole queries of about `pairs` pairs (None: one turn). Each turn is a file beside `file` until
    all are done, so that an interrupted run goes on after the last.
    """
    parts = file.with_suffix(".parts")

    def scores(wanted: Mapping[str, Sequence[str]]) -> Run:
        known = _kept(file, parts)
        turns: list[Run] = []
        room = 0.0  # for pairs in the last turn
        for query, documents in wanted.items():
            if lacking := {d: 0.0 for d in documents if d not in known.get(query, {})}:
                if room <= 0:
                    turns.append({})
                    room = math.inf if pairs is None else pairs
                turns[-1][query] = lacking
                room -= len(lacking)
        first = 1 + max((int(part.stem) for part in parts.glob("*.run")), default=-1)
        accelerator.wait_for_everyone()  # nobody writes before all have seen what is missing
        mine = range(accelerator.process_index, len(turns), accelerator.num_processes)
        shown = accelerator.is_main_process
        with progress_bar(shown and len(turns) > 1) as bar:
            score = load() if mine else None
            for n in bar.track(mine, description=f"score pairs: {file.stem}"):
                assert score is not None
                found = score(turns[n], progress=shown and len(turns) == 1)
                write_run(parts / f"{first + n:06}.run", found, tag=file.stem)
        accelerator.wait_for_everyone()
        by_main(join, accelerator)
        return read_run(file)

    def join() -> None:
        if parts.is_dir():
            write_run(file, _kept(file, parts), tag=file.stem)
            shutil.rmtree(parts)

    return scores


def _kept(file: Path, parts: Path) -> Run:
    kept: Run = {}
    for run in (read_run(f) for f in [file, *sorted(parts.glob("*.run"))] if f.is_file()):
        for query, scores in run.items():
            kept.setdefault(query, {}).update(scores)
    return kept
