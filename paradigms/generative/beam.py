"""argmax over valid sequences (d₁, …, d_m) of Σᵢ log p(dᵢ | d₁ … dᵢ₋₁, q): beam search over prefixes.

Other scorers (`outputs.ScoreName`) can replace log p. Probabilities are taken over the whole vocabulary: they
are not renormalised over valid tokens, and scores are not divided by the length (De Cao et al. 2021,
arXiv:2010.00904, §3.2; Bevilacqua et al. 2022, arXiv:2204.10628, §3). A search that drops no prefix is exact;
a narrower search may miss some of the best sequences.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paradigms.encoder.text import Batch
from paradigms.generative.decoder import Memory
from paradigms.generative.identifiers import Targets
from paradigms.generative.model import MANY_TOKENS, TOKENS, Generative
from paradigms.generative.ngrams import Branches, NGramIndex, ranges
from paradigms.generative.outputs import ScoreName

NOTHING = -1  # pads sequences; sorts before every token


@dataclass(frozen=True)
class Hypotheses:
    """x token sequences, sorted by query, then by descending score, then by tokens."""

    queries: Int[np.ndarray, " x"]  # the query's position in the batch
    tokens: Int[np.ndarray, "x m"]  # padded with NOTHING
    scores: Float[np.ndarray, " x"]  # Σ log p, or another scorer's sum; float64
    states: Int[np.ndarray, "x 3"]  # the constraint's state after the sequence

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, which: np.ndarray | slice) -> "Hypotheses":
        return Hypotheses(*(getattr(self, field.name)[which] for field in fields(self)))

    def of_query(self, query: int) -> "Hypotheses":
        return self[slice(*np.searchsorted(self.queries, [query, query + 1]))]

    @property
    def slots(self) -> Int[np.ndarray, " x"]:
        """Each sequence's position on the decoder's axis n: its rank among the query's sequences."""
        return np.arange(len(self)) - np.searchsorted(self.queries, self.queries)


def beam_search(
    model: Generative,
    sources: Batch,
    constraint: NGramIndex,
    *,
    beams: int,
    length: int,
    keep: bool = False,
    scorer: ScoreName = "log_probability",
) -> Hypotheses:
    """Return up to `beams` sequences per query, of up to `length` tokens, with the highest scores.

    A sequence is finished when it has `length` tokens or when no token may follow it. With log p, finished
    and unfinished sequences compete for the beams. With other scorers, whose sums may rise with every token,
    only unfinished sequences take up beams. When every unfinished sequence has exactly one completion, one
    pass of the decoder completes them all, because none can displace another.

    keep: return the 2·`beams` best continuations of every step, finished or not (SEAL's keys). Finished
    sequences then take up no beams either.
    """
    sources = sources.to(model.device)
    count = len(sources.input_ids)
    apart = keep or scorer != "log_probability"
    table = _branches(model, constraint, constraint.start())
    entry = np.zeros(count, dtype=np.int64)  # each unfinished prefix's row in the table
    empty = np.full((count, length), NOTHING, dtype=np.int64)
    states = np.repeat(constraint.start(), count, axis=0)
    prefixes = Hypotheses(np.arange(count), empty, np.zeros(count), states)
    finished = prefixes[:0]
    steps = [finished]
    with model.evaluating(), torch.inference_mode():
        memories = model.memories(sources, scorer)
        for step in range(length):
            if not len(prefixes):
                break
            rests = [] if keep or model.clusters is not None else constraint.rests(prefixes.states)
            if rests:
                finished = _join([finished, _completed(model, memories, prefixes, step, rests, scorer)])
                break
            scores = _next_scores(model, memories, prefixes, step, scorer)
            parents, longer = _continue(prefixes, step, scores, table, entry, (1 + apart) * beams)
            steps.append(longer)
            table = _branches(model, constraint, longer.states)
            ended = (np.diff(table.offsets) == 0) | (step + 1 == length)
            finished, entry = _select(finished, longer, ended, beams, apart)
            slots = prefixes.slots[parents[entry]]  # where the memories contain what each prefix continues
            prefixes = longer[entry]
            if len(prefixes):
                rows = np.zeros((count, prefixes.slots.max() + 1), dtype=np.int64)
                rows[prefixes.queries, prefixes.slots] = slots
                for memory in memories:
                    memory.keep(rows)
    if keep:
        every = _join(steps)
        return every[_best_first(every, len(every))]
    return finished[_best_first(finished, beams)]


def _branches(model: Generative, constraint: NGramIndex, states: Int[np.ndarray, "x 3"]) -> Branches:
    branches = constraint.branches(states)
    return branches if model.clusters is None else model.clusters.branches(branches)


def _select(
    finished: Hypotheses, longer: Hypotheses, ended: Bool[np.ndarray, " x"], beams: int, apart: bool
) -> tuple[Hypotheses, Int[np.ndarray, " y"]]:
    """Choose each query's best sequences; return the finished ones, and the rows of `longer` to continue.

    apart: choose the best finished and the best unfinished ones; otherwise, the best of all.
    """
    pool = _join([finished, longer])
    closed = np.append(np.ones(len(finished), dtype=bool), ended)
    groups = [np.flatnonzero(closed), np.flatnonzero(~closed)] if apart else [np.arange(len(pool))]
    places = np.concatenate([rows[_best_first(pool[rows], beams)] for rows in groups])
    return pool[places[closed[places]]], places[~closed[places]] - len(finished)


def _next_scores(
    model: Generative, memories: list[Memory], prefixes: Hypotheses, step: int, scorer: ScoreName
) -> Float[Tensor, "x v"]:
    """Run one decoder step; return each next token's contribution to each prefix's score."""
    slots = prefixes.slots
    written = np.pad(prefixes.tokens[:, :step], ((0, 0), (1, 0)), constant_values=model.start)
    inputs = np.full((len(memories[0].mask), slots.max() + 1, step + 1), model.start)
    inputs[prefixes.queries, slots] = written
    hidden = model.decode(memories, torch.from_numpy(inputs).to(model.device))
    where = tuple(torch.from_numpy(axis).to(model.device) for axis in (prefixes.queries, slots))
    readings = [states[where][None] for states in model.readings(hidden, memories, scorer)]
    return model.next_scores(readings, torch.from_numpy(written).to(model.device)[None], scorer)[0]


def _completed(
    model: Generative,
    memories: list[Memory],
    prefixes: Hypotheses,
    step: int,
    rests: list[np.ndarray],
    scorer: ScoreName,
) -> Hypotheses:
    """Append each prefix's completion, cut at the maximum length, and add its score."""
    slots = prefixes.slots
    written = prefixes.tokens.copy()
    for row, rest in zip(written, rests, strict=True):
        row[step : step + len(rest)] = rest[: len(row) - step]
    lengths = (written != NOTHING).sum(1)
    ids = np.full((len(memories[0].mask), slots.max() + 1, lengths.max()), NOTHING)
    ids[prefixes.queries, slots] = written[:, : lengths.max()]
    tokens = torch.from_numpy(ids).to(model.device)
    targets = Targets(tokens.clamp(min=0), tokens != NOTHING, model.start)
    hidden = model.decode(memories, targets.inputs)
    readings = model.readings(hidden, memories, scorer)
    scores = prefixes.scores.copy()
    together = TOKENS.get(model.device.type, MANY_TOKENS)
    wide = max(1, together // (ids.shape[0] * ids.shape[1]))  # positions at once
    for first in range(0, ids.shape[2] - step, wide):
        stop = step + first + wide
        until = Targets(targets.ids[..., :stop], targets.mask[..., :stop], model.start)
        states = [each[:, :, first : first + wide] for each in readings]
        parts = model.token_parts(states, until, scorer)
        scores += parts.double().sum(-1).cpu().numpy()[prefixes.queries, slots]
    after = np.column_stack([prefixes.states[:, :2], lengths])
    return Hypotheses(prefixes.queries, written, scores, after)[np.isfinite(scores)]


def _continue(
    prefixes: Hypotheses,
    step: int,
    added: Float[Tensor, "x v"],
    table: Branches,
    entry: Int[np.ndarray, " x"],
    k: int,
) -> tuple[Int[np.ndarray, " y"], Hypotheses]:
    """Find each query's k best valid one-token continuations, and the rows of the prefixes they extend."""
    offsets, places = ranges(table.offsets[entry], table.offsets[entry + 1])
    rows = np.repeat(np.arange(len(prefixes)), np.diff(offsets))
    queries = prefixes.queries[rows]
    tokens = table.tokens[places]
    at = torch.from_numpy(rows * added.shape[1] + tokens).to(added.device)
    scores = prefixes.scores[rows] + added.reshape(-1)[at].cpu().double().numpy()
    chosen = _largest_of_each(queries, scores, k)
    written = prefixes.tokens[rows[chosen]]
    written[:, step] = tokens[chosen]
    longer = Hypotheses(queries[chosen], written, scores[chosen], table.states[places[chosen]])
    order = _best_first(longer, k)
    return rows[chosen][order], longer[order]


def _largest_of_each(
    queries: Int[np.ndarray, " c"], scores: Float[np.ndarray, " c"], k: int
) -> Int[np.ndarray, " y"]:
    """Indices of each query's k largest finite scores, including ties with the k-th; `queries` ascend."""
    _, firsts, rows, counts = np.unique(queries, return_index=True, return_inverse=True, return_counts=True)
    padded = np.full((len(counts), max(k, counts.max(initial=0))), -np.inf)
    padded[rows, np.arange(len(scores)) - firsts[rows]] = scores
    least = np.partition(padded, -k, axis=1)[:, -k]
    return np.flatnonzero((scores >= least[rows]) & (scores > -np.inf))


def _best_first(hypotheses: Hypotheses, k: int) -> Int[np.ndarray, " y"]:
    """Indices of each query's k best hypotheses, best first; equal scores are ordered by tokens."""
    columns = hypotheses.tokens.T[::-1]
    order = np.lexsort((*columns, -hypotheses.scores, hypotheses.queries))
    queries = hypotheses.queries[order]
    return order[np.arange(len(order)) - np.searchsorted(queries, queries) < k]


def _join(parts: list[Hypotheses]) -> Hypotheses:
    return Hypotheses(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Hypotheses)))
