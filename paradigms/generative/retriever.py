"""Search and rerank a corpus by the identifiers that a decoder generates for a query."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from paradigms.data import Run, best_first, check_queries
from paradigms.explanation import Explanation
from paradigms.generative.beam import beam_search
from paradigms.generative.interaction import decompose
from paradigms.generative.model import Generative
from paradigms.generative.ngrams import NGramIndex
from paradigms.generative.outputs import ScoreName
from paradigms.generative.seal import first_step, query_grams, seal_scores
from paradigms.io.checks import check_texts
from paradigms.io.progress import progress_bar

HYPOTHESES = {"cpu": 640}  # decoded at once, over all queries; each takes logits of the whole vocabulary
MANY_HYPOTHESES = 1 << 13
QUERIES = 64  # maximum number of queries per batch


class GenerativeRetriever:
    """Retriever that searches the model's corpus by constrained decoding and reranks by the model's rel.

    A search ranks documents by the identifiers that it completes or, if identifiers are whole texts, by
    n-grams (SEAL).
    """

    def __init__(self, model: Generative) -> None:
        self.model = model

    @cached_property
    def valid(self) -> NGramIndex:
        """Index of the token sequences that a search may generate; built on first use."""
        identifiers = self.model.identifiers
        return NGramIndex.build(*identifiers.targets, whole=identifiers.end is not None)

    def size_in_bytes(self) -> int:
        """Size of the weights (without a frozen encoder), the identifiers and `valid`, in bytes."""
        model = self.model
        parts: list[Any] = [*model.parameters(), *model.buffers()]
        if model.settings.frozen:
            frozen = {id(part) for part in (*model.encoder.parameters(), *model.encoder.buffers())}
            frozen -= {id(part) for part in model.decoder.parameters()}
            parts = [part for part in parts if id(part) not in frozen]
        held = [vars(part) for part in (model.identifiers, self.valid, model.clusters) if part is not None]
        parts += [part for part in held for part in part.values() if isinstance(part, np.ndarray)]
        return sum(part.nbytes for part in parts)

    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Find at most k documents per query, best first; equal scores are ordered by id.

        The search finds only documents that the beams reach, often fewer than k. A document's score is
        `settings.score` of its best identifier, plus its set part; n-grams are scored by their probabilities
        (SEAL).
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        check_texts(queries, "query")
        settings, ranked = self.model.settings, Run()
        wanted = HYPOTHESES.get(self.model.device.type, MANY_HYPOTHESES) // settings.beams
        step = min(max(1, wanted), QUERIES)
        with progress_bar(progress) as bar:
            for batch in bar.track(_batches(queries, queries, step), description=f"search {settings.name}"):
                texts = [queries[query] for query in batch]
                for query, scores in zip(batch, self._search(texts), strict=True):
                    ranked[query] = self._ranked(scores, k)
        return {query: ranked[query] for query in queries}

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Score the run's documents by rel under `settings.score`, best first.

        A document's rel is the largest rel of its names (`Generative.names`), or −∞ if it has none, plus its
        set part. Raises KeyError if a query or document is unknown.
        """
        return self.rankings(queries, run, [self.model.settings.score], progress=progress)[0]

    def rankings(
        self,
        queries: Mapping[str, str],
        run: Run,
        scorers: Sequence[ScoreName],
        *,
        whole: bool = False,
        progress: bool = False,
    ) -> list[Run]:
        """Rerank by each scorer, decoding each name only once.

        whole: score a document by its identifiers, not by windows, even if the identifiers are whole texts.
        """
        model, positions = self.model, self.model.identifiers.positions
        check_queries(run, queries)
        lost = next((id for candidates in run.values() for id in candidates if id not in positions), None)
        if lost is not None:
            raise KeyError(f"the run names the document {lost!r}, which has no identifier in {model.name}")
        runs: list[Run] = [{} for _ in scorers]
        with progress_bar(progress) as bar:
            for batch in bar.track(_batches(run, queries, QUERIES), description=f"rerank {model.name}"):
                named = [
                    {id: [*map(tuple, model.names(positions[id], whole=whole))] for id in run[query]}
                    for query in batch
                ]
                sequences = [
                    sorted({t for names in names_by_id.values() for t in names}) for names_by_id in named
                ]
                sources = model.tokenize([queries[query] for query in batch])
                scores = model.sequence_scores(sources, sequences, *scorers)
                plan = model.set_scores(sources)
                for n, (query, sequence, rows) in enumerate(zip(batch, sequences, scores, strict=True)):
                    for place, values in enumerate(rows):
                        rel = dict(zip(sequence, values.tolist(), strict=True))
                        best = {
                            id: max((rel[t] for t in names), default=-np.inf)
                            + (0.0 if plan is None else float(plan[n, positions[id]]))
                            for id, names in named[n].items()
                        }
                        runs[place][query] = best_first(best)
        return [{query: ranked[query] for query in run} for ranked in runs]

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Decompose the score of the document's best name, one row per token; return [] if it has no name.

        The L·H document tokens of one position share a row, in which A (the alignment) is the tokens' mean
        attention and S·A is the sum of the tokens' products. The tokens of the document's set follow, each
        aligned with one query token.
        """
        model, position = self.model, self.model.identifiers.positions[document]
        names = model.names(position)
        if not names:
            return []
        sources = model.tokenize([query]).to(model.device)
        targets = model.targets([names]).to(model.device)
        scorer = model.settings.score
        with model.evaluating(), torch.inference_mode():
            best = int(model(sources, targets, scorer).sum(-1)[0].argmax())
        targets = model.targets([[names[best]]]).to(model.device)
        interaction = decompose(model, sources, targets, scorer)[-1]
        A = interaction.alignment[0, 0].unflatten(0, (-1, targets.ids.shape[-1]))
        shares = interaction.similarity[0, 0].unflatten(0, (-1, targets.ids.shape[-1])) * A
        mean, share = A.mean(0), shares.sum(0)
        rows, tokens, rel = [(mean, share)], model.labels(names[best]), float(interaction.rel[0, 0])
        if model.sets is not None:
            with model.evaluating(), torch.inference_mode():
                states, memory = model.begin(sources)
                where = torch.tensor([[position]], device=model.device)
                of_set = model.sets.interact(where, states, memory.mask)
            rows.append((of_set.alignment[0, 0], (of_set.similarity * of_set.alignment)[0, 0]))
            tokens += model.sets.labels(model.tokenizer, position)
            rel += float(of_set.rel[0, 0])
        mean, share = (torch.cat(parts) for parts in zip(*rows, strict=True))
        assert interaction.rest is not None
        explanation = Explanation(
            system=model.name,
            reads="the decoder's state: the query, and the identifier up to the token before",
            query_tokens=model.tokenizer.convert_ids_to_tokens(sources.input_ids[0].tolist()),
            document_tokens=tokens,
            links=[
                (i, j, float(share[i, j] / mean[i, j]), float(mean[i, j])) for i, j in mean.nonzero().tolist()
            ],
            Z=1.0,
            rel=rel,
            rest=float(interaction.rest[0, 0]),
        )
        return [explanation]

    def _search(self, texts: list[str]) -> Iterator[Iterable[tuple[int, float]]]:
        """Yield (identifier number, score) pairs for each query."""
        model, settings, identifiers = self.model, self.model.settings, self.model.identifiers
        sources, by_grams = model.tokenize(texts), identifiers.end is None
        length = settings.span if by_grams else identifiers.longest
        scorer = "log_probability" if by_grams else settings.score
        plan = model.set_scores(sources)
        if plan is not None:
            plan = plan[:, identifiers.owners]
        how: dict[str, Any] = {"beams": settings.beams, "length": length, "keep": by_grams}
        hypotheses = beam_search(model, sources, self.valid, **how, scorer=scorer, plan=plan)
        parts = [hypotheses.of_query(query) for query in range(len(texts))]
        if not by_grams:
            for query, part in enumerate(parts):
                offsets, numbers, _ = self.valid.locate(part.states)
                scores = np.repeat(part.scores - part.ahead, np.diff(offsets))
                if plan is not None:
                    scores += plan[query, numbers]
                yield zip(numbers.tolist(), scores.tolist(), strict=True)
            return
        # SEAL's keys: n-grams kept in any step of the search, n-grams of the query, and single tokens.
        query_keys, unigrams = query_grams(model, self.valid, texts, sources), first_step(model, sources)
        for part, (states, log_p), first in zip(parts, query_keys, unigrams, strict=True):
            keys = np.concatenate([part.states, states]), np.concatenate([part.scores, log_p])
            yield seal_scores(self.valid, *keys, first).items()

    def _ranked(self, scores: Iterable[tuple[int, float]], k: int) -> dict[str, float]:
        """Rank the k best documents, each by its best-scoring identifier. scores: (identifier, score)."""
        identifiers = self.model.identifiers
        best: dict[str, float] = {}
        for number, score in scores:
            id = identifiers.documents[identifiers.owners[number]]
            best[id] = max(score, best.get(id, score))
        return best_first(best, k)


def _batches(some: Iterable[str], queries: Mapping[str, str], size: int) -> list[list[str]]:
    """Divide queries into batches of at most `size` queries with similar lengths."""
    order = sorted(some, key=lambda query: len(queries[query]))
    return [order[start : start + size] for start in range(0, len(order), size)]
