"""Explain a document's score: show the tokens that each paradigm aligns, in the terminal and as a page.

python experiments/examples/explain_a_result.py "remove white space" "Return a copy without leading blanks."
"""

import sys

if __name__ == "__main__" and "--help" in sys.argv:  # before the slow imports
    sys.exit(print(__doc__))

from paradigms import PARADIGMS
from paradigms.cli.show import alignment
from paradigms.view.report import AlignmentExample, Report, write_report


def main(query: str, document: str, backbone: str = "offline", page: str = "results/explained.html") -> None:
    systems = []
    for name in ("dpr", "colbert", "aligner"):
        model = PARADIGMS[name](backbone)
        systems.append(model.explain(query, document))
        alignment(systems[-1], f"{name}: {query}", "document")
    example = AlignmentExample("query", "document", query, document, True, systems)
    write_report(page, Report(title="Explained", summary="Untrained projections.", alignments=[example]))
    print(f"Side by side: {page}")


if __name__ == "__main__":
    main(*sys.argv[1:])
