"""Open the live page for the results of compare.py, with every finished system and the judged queries.

`make explore` opens the page for the results of `make compare`. Settings, checkpoints and indexes come from
the results folder; documents are not encoded again.
"""

from pathlib import Path

from studies.settings import launch, refusing

from paradigms.io.command_line import flags


@flags()
class Settings:
    """Settings that select the results to show and the address of the live page."""

    results: str = "results/compare-pydocs"
    """results folder of compare.py"""
    port: int = 8765
    """port on 127.0.0.1; 0 chooses a free one"""


launch(__name__, Settings, __doc__)  # before the slow imports

from compare import reopened
from studies import systems

from paradigms.serve import serve


def main(settings: Settings) -> None:
    folder = Path(settings.results)
    with refusing():
        compared, collection = reopened(folder)
    data = systems.prepare(collection, compared)
    names = [name for name, system in compared.chosen.items() if not system.fuse]
    finished = ["bm25", *(name for name in names if (folder / name / "costs.json").is_file())]
    with refusing():
        retrievers = {name: systems.finished(name, data) for name in finished}
        serve(retrievers, collection.corpus, judged=data.test, port=settings.port)
