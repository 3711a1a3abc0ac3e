"""Which paradigm token vectors of a foreign checkpoint are: rel as its library computes it."""

from paradigms.encoder.text import TextEncoder
from paradigms.model import Paradigm
from paradigms.recipe import Recipe


def late_interaction(encoder: TextEncoder, *, mean: bool = False) -> Paradigm:
    """ColBERT with the sum over query tokens of the best similarities, or their mean."""
    return Paradigm(
        Recipe(
            name="colbert",
            align="query_to_document",
            normalise="query_tokens" if mean else "one",
            temperature=0.02 if mean else 1.0,
        ),
        encoder,
    )


def one_vector(encoder: TextEncoder) -> Paradigm:
    """DPR: the cosine or inner product of two vectors."""
    temperature = 0.05 if encoder.settings.normalize else 1.0
    return Paradigm(Recipe(name="dpr", align="all_pairs", normalise="one", temperature=temperature), encoder)
