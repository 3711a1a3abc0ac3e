"""Make HTML views of the alignment A between tokens, for the report, the live page and notebooks.

    Path("pair.html").write_text(page([card_data(colbert.explain(query, document))], query, document))

cards.js draws a card from each explanation's `card_data`: numbers, a matrix, shaded tokens and links between
tokens. Texts enter a page as JSON and are displayed as text nodes, never as HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice, product
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradigms.explanation import Explanation

if TYPE_CHECKING:
    import jinja2

    from paradigms.core import Interaction

FOLDER = Path(__file__).parent
PAIRS = 8  # maximum number of pairs of an interaction to draw in a notebook
HEIGHT = 30  # height of a notebook's frame, in rem


def environment(*folders: Path) -> jinja2.Environment:
    """Make a template environment that escapes every value, for these folders and this module's folder."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    compact = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}
    templates.policies["json.dumps_kwargs"] = compact
    return templates


def card_data(explanation: Explanation, where: str = "") -> dict[str, Any]:
    """Convert an explanation to input for cards.js: flat lists of links, and numbers rounded to 4 digits.

    where: start of the message of the ValueError that is raised if a number is not finite.
    """

    def rounded(values: Iterable[float]) -> list[float]:
        digits = [float(f"{value:.4g}") for value in values]
        if not all(map(isfinite, digits)):
            raise ValueError(f"{where}, system {explanation.system!r}: a number is not finite")
        return digits

    z, rel, rest = rounded([explanation.Z, explanation.rel, explanation.rest])
    query = explanation.query_salience
    document = explanation.document_salience
    return {
        "query_salience": None if query is None else rounded(query),
        "document_salience": None if document is None else rounded(document),
        "system": explanation.system,
        "reads": explanation.reads,
        "query": explanation.query_tokens,
        "document": explanation.document_tokens,
        "i": [int(i) for i, _, _, _ in explanation.links],
        "j": [int(j) for _, j, _, _ in explanation.links],
        "s": rounded(s for _, _, s, _ in explanation.links),
        "a": rounded(a for _, _, _, a in explanation.links),
        "Z": z,
        "rel": rel,
        "rest": rest,
        "picture": None if explanation.picture is None else vars(explanation.picture),
    }


def page(cards: Sequence[dict[str, Any]], query: str = "", document: str = "") -> str:
    """Make a self-contained HTML page for a query and a document. cards: results of `card_data`."""
    return environment().get_template("cards.html.j2").render(cards=cards, query=query, document=document)


def framed(explanations: Sequence[Explanation], query: str = "", document: str = "") -> str:
    """Put a `page` into a frame for a notebook, so that the page's script cannot access the notebook."""
    html = page([card_data(one) for one in explanations], query, document)
    return (
        f'<iframe sandbox="allow-scripts" title="A between tokens" srcdoc="{escape(html)}" '
        f'style="width: 100%; height: {HEIGHT}rem; border: 0; resize: vertical; overflow: auto"></iframe>'
    )


def explanations_of(interaction: Interaction) -> list[Explanation]:
    """Explain the first `PAIRS` pairs of an interaction, with numbers in place of the tokens' texts."""
    S = interaction.similarity.detach().cpu()
    A = interaction.alignment.detach().cpu()
    Z = interaction.normaliser.detach().cpu()
    rel = interaction.rel.detach().cpu()
    explanations = []
    query = [f"q{j}" for j in range(A.shape[3])]
    document = [f"d{i}" for i in range(A.shape[2])]
    for b, n in islice(product(range(A.shape[0]), range(A.shape[1])), PAIRS):
        links = [(i, j, float(S[b, n, i, j]), float(A[b, n, i, j])) for i, j in A[b, n].nonzero().tolist()]
        rest = 0.0 if interaction.rest is None else float(interaction.rest[b, n])
        name = f"query {b}, document {n}"
        normaliser = float(Z[b, n])
        total = float(rel[b, n])
        explanations.append(Explanation(name, "", query, document, links, normaliser, total, rest=rest))
    return explanations
