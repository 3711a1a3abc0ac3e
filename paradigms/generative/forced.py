"""rel(d, q) of given token sequences, by teacher forcing: many of one query at once, in bounded memory."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from paradigms.encoder.batches import Batch, by_length
from paradigms.generative.decoder import Memory, decode
from paradigms.generative.model import Generative
from paradigms.generative.outputs import ScoreName

# Padded tokens that the decoder reads at once; each has a logit for every entry of the vocabulary.
PLACES = {"cpu": 1 << 10}
MANY_PLACES = 1 << 14


def sequence_scores(
    model: Generative, sources: Batch, sequences: Sequence[Sequence[Sequence[int]]], *scorers: ScoreName
) -> list[Float[np.ndarray, "s n"]]:
    """Σᵢ of `Generative.token_scores` of each query's own non-empty sequences, sequences[b][n], by each
    scorer.

    A query is encoded once and its sequences share its keys and values; memory is bounded whatever their
    number.
    """
    sources, places = sources.to(model.device), PLACES.get(model.device.type, MANY_PLACES)
    with model.evaluating(), torch.inference_mode():
        _, memory = model.begin(sources)
        scores = [np.empty((len(scorers), len(own))) for own in sequences]
        for query, own in enumerate(sequences):
            for numbers in by_length([len(sequence) for sequence in own], places):
                targets = model.targets([[own[n] for n in numbers]]).to(model.device)
                states = decode(model.decoder, model.embed(targets.inputs), _of(memory, query))
                for row, scorer in enumerate(scorers):
                    parts: Tensor = model.token_parts(states, targets, scorer).where(targets.mask, 0)
                    scores[query][row, numbers] = parts[0].cpu().double().sum(-1).numpy()
    return scores


def _of(memory: Memory, query: int) -> Memory:
    """The memory of one query, with nothing decoded yet."""
    row = slice(query, query + 1)
    return Memory(memory.mask[row], [(k[row], v[row]) for k, v in memory.crossed], [])
