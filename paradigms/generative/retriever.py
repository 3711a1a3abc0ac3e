"""Search and rerank a corpus by the identifiers that a decoder generates for a query."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paradigms.data import Run, best_first, check_queries
from paradigms.data.results import any_queries
from paradigms.encoder.batches import by_length
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
        return NGramIndex.build(*identifiers.targets, trie=identifiers.end is not None)

    def size_in_bytes(self) -> int:
        """Size of the weights (without a frozen encoder), the identifiers and `valid`, in bytes."""
        model = self.model
        parts: list[Any] = [*model.parameters(), *model.buffers()]
        if model.settings.frozen:
            frozen = {id(part) for part in (*model.encoder.parameters(), *model.encoder.buffers())}
            frozen -= {id(part) for part in model.decoder.parameters()}
            parts = [part for part in parts if id(part) not in frozen]
        for owner in (model.identifiers, self.valid, model.clusters):
            arrays = () if owner is None else vars(owner).values()
            parts += [array for array in arrays if isinstance(array, np.ndarray)]
        return sum(part.nbytes for part in parts)

    @any_queries
    def search(self, queries: Mapping[str, str], k: int = 100, *, progress: bool = False) -> Run:
        """Find at most k documents per query, best first; equal scores are ordered by id.

        The search finds only documents that the beams reach, often fewer than k. A document's score is
        `settings.score` of its identifier; n-grams are scored by their probabilities (SEAL).
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        check_texts(queries, "query")
        settings = self.model.settings
        documents = self.model.identifiers.documents
        together = HYPOTHESES.get(self.model.device.type, MANY_HYPOTHESES) // settings.beams
        step = min(max(1, together), QUERIES)
        search = self._search_ngrams if self.model.identifiers.end is None else self._search_names
        run: Run = {query: {} for query in queries}
        with progress_bar(progress) as bar:
            for batch in bar.track(_batches(queries, queries, step), description=f"search {settings.name}"):
                results = search([queries[query] for query in batch])
                for query, scores in zip(batch, results, strict=True):
                    run[query] = best_first({documents[n]: score for n, score in scores.items()}, k)
        return run

    def rerank(self, queries: Mapping[str, str], run: Run, *, progress: bool = False) -> Run:
        """Score the run's documents by rel under `settings.score`, best first.

        A document's rel is the largest rel of its sequences (`Generative.names`), or −∞ if it has none.
        Raises KeyError if a query or document is unknown.
        """
        return self.rankings(queries, run, [self.model.settings.score], progress=progress)[0]

    def rankings(
        self,
        queries: Mapping[str, str],
        run: Run,
        scorers: Sequence[ScoreName],
        *,
        windows: bool = True,
        progress: bool = False,
    ) -> list[Run]:
        """Rerank by each scorer, decoding each name only once.

        windows: score a text by its windows; False: by all of its tokens.
        """
        check_queries(run, queries)
        positions = self.model.identifiers.positions
        lost = next((id for candidates in run.values() for id in candidates if id not in positions), None)
        name = self.model.name
        if lost is not None:
            raise KeyError(f"the run names the document {lost!r}, which has no identifier in {name}")
        runs: list[Run] = [{query: {} for query in run} for _ in scorers]
        with progress_bar(progress) as bar:
            for batch in bar.track(_batches(run, queries, QUERIES), description=f"rerank {name}"):
                names = [
                    {id: self.model.names(positions[id], windows=windows) for id in run[q]} for q in batch
                ]
                sequences = [sorted({tuple(t) for each in by_id.values() for t in each}) for by_id in names]
                sources = self.model.tokenize([queries[query] for query in batch])
                scores = self.model.sequence_scores(sources, sequences, *scorers)
                for n, query in enumerate(batch):
                    for ranked, values in zip(runs, scores[n], strict=True):
                        rel = dict(zip(sequences[n], values.tolist(), strict=True))
                        of_document = {
                            id: max((rel[tuple(t)] for t in each), default=-np.inf)
                            for id, each in names[n].items()
                        }
                        ranked[query] = best_first(of_document)
        return runs

    def explain(self, query: str, document: str, others: Sequence[str] = ()) -> list[Explanation]:
        """Decompose the score of the document's best name, one row per token; return [] if it has no name.

        The L·H document tokens of one position share a row, in which A (the alignment) is the tokens' mean
        attention and S·A is the sum of the tokens' products.
        """
        model = self.model
        names = model.names(model.identifiers.positions[document])
        if not names:
            return []
        sources = model.tokenize([query]).to(model.device)
        scorer = model.settings.score
        [scores] = model.sequence_scores(sources, [names], scorer)
        name = names[int(scores.argmax())]
        interaction = decompose(model, sources, model.targets([[name]]).to(model.device), scorer)[-1]
        A = interaction.alignment[0, 0].unflatten(0, (-1, len(name)))
        shares = interaction.similarity[0, 0].unflatten(0, (-1, len(name))) * A
        mean = A.mean(0)
        share = shares.sum(0)
        assert interaction.rest is not None
        explanation = Explanation(
            system=model.name,
            reads="the decoder's state: the query, and the identifier up to the token before",
            query_tokens=model.tokenizer.convert_ids_to_tokens(sources.input_ids[0].tolist()),
            document_tokens=model.labels(name),
            links=[
                (i, j, float(share[i, j] / mean[i, j]), float(mean[i, j])) for i, j in mean.nonzero().tolist()
            ],
            Z=1.0,
            rel=float(interaction.rel[0, 0]),
            rest=float(interaction.rest[0, 0]),
        )
        return [explanation]

    def _search_names(self, texts: list[str]) -> Iterator[dict[int, float]]:
        """Yield document number -> score for each query."""
        model = self.model
        sources = model.tokenize(texts)
        hypotheses = beam_search(
            model,
            sources,
            self.valid,
            beams=model.settings.beams,
            length=model.identifiers.longest,
            scorer=model.settings.score,
        )
        for query in range(len(texts)):
            names = hypotheses.of_query(query)
            offsets, numbers, _ = self.valid.locate(names.states)
            lengths = np.diff(offsets)
            scores = np.repeat(names.scores, lengths)
            largest: dict[int, float] = {}  # clusters spell a name in several ways
            for number, score in zip(numbers.tolist(), scores.tolist(), strict=True):
                largest[number] = max(score, largest.get(number, score))
            yield largest

    def _search_ngrams(self, texts: list[str]) -> Iterator[dict[int, float]]:
        """Score documents by SEAL's keys: n-grams kept in any step, n-grams of the query, single tokens."""
        model = self.model
        sources = model.tokenize(texts)
        beams = model.settings.beams
        length = model.settings.span
        hypotheses = beam_search(model, sources, self.valid, beams=beams, length=length, keep=True)
        of_queries = query_grams(model, self.valid, texts, sources)
        unigrams = first_step(model, sources)
        for query, ((states, log_p), first) in enumerate(zip(of_queries, unigrams, strict=True)):
            written = hypotheses.of_query(query)
            keys = np.concatenate([written.states, states])
            yield seal_scores(self.valid, keys, np.concatenate([written.scores, log_p]), first)


def _batches(ids: Iterable[str], queries: Mapping[str, str], size: int) -> list[list[str]]:
    names = list(ids)
    return [[names[n] for n in part] for part in by_length([len(queries[id]) for id in names], rows=size)]
