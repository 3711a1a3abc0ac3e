"""argmax over valid sequences (d₁, …, d_m) of Σᵢ log p(dᵢ | d₁ … dᵢ₋₁, q): beam search over prefixes.

Other scorers (`outputs.ScoreName`) can replace log p. Probabilities are taken over the whole vocabulary: they
are not renormalised over valid tokens, and scores are not divided by the length (De Cao et al. 2021,
arXiv:2010.00904, §3.2; Bevilacqua et al. 2022, arXiv:2204.10628, §3). A search that drops no prefix is exact;
a narrower search may miss some of the best sequences.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float, Int
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
    scores: Float[np.ndarray, " x"]  # Σ log p, or another scorer's sum, plus `ahead`; float64
    ahead: Float[np.ndarray, " x"]  # the largest planned score of the sequence's documents; 0 without a plan
    states: Int[np.ndarray, "x s"]  # the constraint's state after the sequence

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, which: np.ndarray | slice) -> "Hypotheses":
        return Hypotheses(*(getattr(self, field.name)[which] for field in fields(self)))

    def of_query(self, query: int) -> "Hypotheses":
        return self[slice(*np.searchsorted(self.queries, [query, query + 1]))]

    def sequences(self) -> list[list[int]]:
        return [row[row != NOTHING].tolist() for row in self.tokens]


def beam_search(
    model: Generative,
    sources: Batch,
    constraint: NGramIndex | None,
    *,
    beams: int,
    length: int,
    keep: bool = False,
    scorer: ScoreName = "log_probability",
    plan: Float[np.ndarray, "b d"] | None = None,
) -> Hypotheses:
    """Return up to `beams` sequences per query, of up to `length` tokens, with the highest scores.

    A sequence is finished when it has `length` tokens or when no token may follow it. Without a constraint,
    the end token also finishes it. The search ends when no unfinished sequence is left. With log p, finished
    and unfinished sequences compete for the beams. With other scorers, whose sums may rise with every token,
    only unfinished sequences take up beams. When every unfinished sequence has exactly one completion, one
    pass of the decoder completes them all, because none can displace another.

    keep: return the 2·`beams` best continuations of every step, finished or not (SEAL's keys). Finished
    sequences then take up no beams either.

    plan: a score for each of the constraint's documents, known before decoding. The largest score among the
    documents whose identifiers begin with a prefix is then added to the prefix's score (planning ahead: Zeng
    et al. 2024, arXiv:2404.14600); in a trie, these documents are neighbours.
    """
    sources = sources.to(model.device)
    count = len(sources.input_ids)
    start = np.zeros((1, 0), dtype=np.int64) if constraint is None else constraint.start()
    tokens = np.full((count, length), NOTHING, dtype=np.int64)
    nothing = np.zeros(count)
    prefixes = Hypotheses(np.arange(count), tokens, nothing, nothing, np.repeat(start, count, axis=0))
    if plan is not None:
        assert constraint is not None
        plan = np.pad(plan[:, constraint.documents], ((0, 0), (0, 1)), constant_values=-np.inf)
    table = None if constraint is None else _branches(model, constraint, start)
    entry = np.zeros(count, dtype=np.int64)  # each unfinished prefix's row in the table
    finished, steps = prefixes[:0], [prefixes[:0]]
    with model.evaluating(), torch.inference_mode():
        memories, apart = model.memories(sources, scorer), keep or scorer != "log_probability"
        for step in range(length):
            if not len(prefixes):
                break
            if constraint and model.clusters is None and not keep and (rests := _rests(constraint, prefixes)):
                finished = _join([finished, _completed(model, memories, prefixes, rests, scorer, count)])
                break
            slots, scores = _next(model, memories, prefixes, step, scorer, count)
            most = 2 * beams if apart else beams
            parents, longer = _continue(prefixes, step, scores, table, entry, most, plan)
            steps.append(longer)
            if constraint is None:
                ended = longer.tokens[:, step] == model.identifiers.end
            else:
                table = _branches(model, constraint, longer.states)
                ended = np.diff(table.offsets) == 0
            ended |= step + 1 == length
            if apart:
                open_ones, closed = np.flatnonzero(~ended), _join([finished, longer[ended]])
                entry = open_ones[_best_first(longer[open_ones], beams)]
                finished = closed[_best_first(closed, beams)]
            else:
                best = _best_first(_join([finished, longer]), beams)
                fresh = best[best >= len(finished)] - len(finished)
                finished = _join([finished[best[best < len(finished)]], longer[fresh[ended[fresh]]]])
                entry = fresh[~ended[fresh]]
            prefixes = longer[entry]
            if len(prefixes):
                _keep_parents(memories, slots[parents[entry]], prefixes, count)
    results = _join(steps) if keep else finished
    return results[_best_first(results, len(results) if keep else beams)]


def _branches(model: Generative, constraint: NGramIndex, states: Int[np.ndarray, "x 3"]) -> Branches:
    branches = constraint.branches(states)
    return branches if model.clusters is None else model.clusters.branches(branches)


def _rests(constraint: NGramIndex, prefixes: Hypotheses) -> list[np.ndarray]:
    """Return each prefix's only completion, or [] if any prefix has more than one completion."""
    rests = []
    for state in prefixes.states:
        if (rest := constraint.rest(state)) is None:
            return []
        rests.append(rest)
    return rests


def _completed(
    model: Generative,
    memories: list[Memory],
    prefixes: Hypotheses,
    rests: list[np.ndarray],
    scorer: ScoreName,
    count: int,
) -> Hypotheses:
    """Append each prefix's completion, cut at the maximum length, and add its score."""
    written, slots = prefixes.tokens.copy(), _slots(prefixes)
    step = int((written[0] != NOTHING).sum())
    for row, rest in zip(written, rests, strict=True):
        row[step : step + len(rest)] = rest[: len(row) - step]
    lengths = (written != NOTHING).sum(1)
    ids = np.full((count, slots.max() + 1, lengths.max()), NOTHING)
    ids[prefixes.queries, slots] = written[:, : lengths.max()]
    tokens = torch.from_numpy(ids).to(model.device)
    targets = Targets(tokens.clamp(min=0), tokens != NOTHING, model.start)
    readings = model.readings(model.decode(memories, targets.inputs), memories, scorer)
    scores, wide = prefixes.scores.copy(), TOKENS.get(model.device.type, MANY_TOKENS)
    wide = max(1, wide // (ids.shape[0] * ids.shape[1]))  # positions at once
    for first in range(0, ids.shape[2] - step, wide):
        part, stop = slice(first, first + wide), step + first + wide
        begun = Targets(targets.ids[..., :stop], targets.mask[..., :stop], model.start)
        parts = model.token_parts([states[:, :, part] for states in readings], begun, scorer)
        scores += parts.double().sum(-1).cpu().numpy()[prefixes.queries, slots]
    states = np.column_stack([prefixes.states[:, :2], lengths])
    done = np.isfinite(scores)
    return Hypotheses(prefixes.queries, written, scores, prefixes.ahead, states)[done]


def _slots(prefixes: Hypotheses) -> Int[np.ndarray, " x"]:
    """Return each prefix's position on the decoder's axis n: its rank among the query's prefixes."""
    return np.arange(len(prefixes)) - np.searchsorted(prefixes.queries, prefixes.queries)


def _next(
    model: Generative,
    memories: list[Memory],
    prefixes: Hypotheses,
    step: int,
    scorer: ScoreName,
    count: int,
) -> tuple[Int[np.ndarray, " x"], Float[Tensor, "x v"]]:
    """Run one decoder step; return the prefixes' slots and each next token's contribution to the score."""
    slots = _slots(prefixes)
    begun = np.pad(prefixes.tokens[:, :step], ((0, 0), (1, 0)), constant_values=model.start)
    inputs = np.full((count, slots.max() + 1, step + 1), model.start)
    inputs[prefixes.queries, slots] = begun
    device = memories[0].mask.device
    hidden = model.decode(memories, torch.from_numpy(inputs).to(device))
    where = tuple(torch.from_numpy(axis).to(device) for axis in (prefixes.queries, slots))
    readings = [states[where][None] for states in model.readings(hidden, memories, scorer)]
    return slots, model.next_scores(readings, torch.from_numpy(begun).to(device)[None], scorer)[0]


def _keep_parents(
    memories: list[Memory], slots: Int[np.ndarray, " x"], prefixes: Hypotheses, count: int
) -> None:
    """Reorder the decoder's memories so that each prefix continues its parent's slot."""
    new_slots = _slots(prefixes)
    rows = np.zeros((count, new_slots.max() + 1), dtype=np.int64)
    rows[prefixes.queries, new_slots] = slots
    for memory in memories:
        memory.keep(rows)


def _continue(
    prefixes: Hypotheses,
    step: int,
    added: Float[Tensor, "x v"],
    table: Branches | None,
    entry: Int[np.ndarray, " x"],
    k: int,
    plan: Float[np.ndarray, "b r"] | None,
) -> tuple[Int[np.ndarray, " y"], Hypotheses]:
    """Find each query's k best valid one-token continuations, and the rows of the prefixes they extend."""
    if table is None:
        rows, tokens = _largest(added, k)
    else:
        offsets, places = ranges(table.offsets[entry], table.offsets[entry + 1])
        rows, tokens = np.repeat(np.arange(len(prefixes)), np.diff(offsets)), table.tokens[places]
    at = torch.from_numpy(rows * added.shape[1] + tokens).to(added.device)
    scores = prefixes.scores[rows] + added.reshape(-1)[at].cpu().double().numpy()
    ahead = prefixes.ahead[rows]
    if plan is not None:
        assert table is not None
        planned = _range_maxima(plan, prefixes.queries[rows], table.states[places])
        scores, ahead = scores - ahead + planned, planned
    best = _largest_of_each(prefixes.queries[rows], scores, k)
    rows, tokens = rows[best], tokens[best]
    written = prefixes.tokens[rows]
    written[:, step] = tokens
    states = prefixes.states[rows] if table is None else table.states[places[best]]
    longer = Hypotheses(prefixes.queries[rows], written, scores[best], ahead[best], states)
    order = _best_first(longer, k)
    return rows[order], longer[order]


def _range_maxima(
    plan: Float[np.ndarray, "b r"], queries: Int[np.ndarray, " c"], states: Int[np.ndarray, "c 3"]
) -> Float[np.ndarray, " c"]:
    """max(plan[query, lo:hi]) for each query and state. The plan's last column is only an end marker."""
    bounds = states[:, :2] + (queries * plan.shape[1])[:, None]
    order = np.argsort(bounds[:, 0], kind="stable")  # gaps between ranges are read once, too
    maxima = np.empty(len(states))
    if len(states):
        maxima[order] = np.maximum.reduceat(plan.ravel(), bounds[order].ravel())[::2]
    return maxima


def _largest_of_each(
    queries: Int[np.ndarray, " c"], scores: Float[np.ndarray, " c"], k: int
) -> Int[np.ndarray, " y"]:
    """Indices of each query's k largest scores, including ties with the k-th. `queries` must be sorted."""
    different, first, counts = np.unique(queries, return_index=True, return_counts=True)
    padded = torch.full((len(different), int(counts.max(initial=0))), -torch.inf, dtype=torch.float64)
    rows = np.repeat(np.arange(len(different)), counts)
    columns = np.arange(len(scores)) - first[rows]
    padded[torch.from_numpy(rows), torch.from_numpy(columns)] = torch.from_numpy(scores)
    rows, columns = _largest(padded, k)
    return first[rows] + columns


def _largest(scores: Float[Tensor, "r w"], k: int) -> tuple[Int[np.ndarray, " y"], Int[np.ndarray, " y"]]:
    """Return rows and columns of each row's k largest finite scores, including ties with the k-th."""
    width = scores.shape[1]
    values, columns = scores.topk(min(k + 1, width))
    if width > k and bool(((values[:, k - 1] == values[:, k]) & (values[:, k] > -torch.inf)).any()):
        largest = (scores >= values[:, k - 1 : k]) & (scores > -torch.inf)
        rows, places = largest.nonzero(as_tuple=True)
    else:
        rows, ranks = (values[:, :k] > -torch.inf).nonzero(as_tuple=True)
        places = columns[rows, ranks]
    return rows.cpu().numpy(), places.cpu().numpy()


def _best_first(hypotheses: Hypotheses, k: int) -> Int[np.ndarray, " y"]:
    """Indices of each query's k best hypotheses, best first; equal scores are ordered by tokens."""
    columns = hypotheses.tokens.T[::-1]
    order = np.lexsort((*columns, -hypotheses.scores, hypotheses.queries))
    queries = hypotheses.queries[order]
    return order[np.arange(len(order)) - np.searchsorted(queries, queries) < k]


def _join(parts: list[Hypotheses]) -> Hypotheses:
    return Hypotheses(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Hypotheses)))
