"""Compare nDCG@10 and bytes per document of ColBERT models trained for compact storage, and of a control.

`matryoshka` adds losses on the first coordinates (Kusupati et al. 2022, arXiv:2205.13147), `coded` trains
with documents in the 2-bit codes that the index stores (straight-through), `both` combines the two methods,
and `spans` represents each document by a fixed number of vectors. The control is the same ColBERT, trained
without these methods, and `untrained` is the control before training. Each model's documents are then stored
with fewer coordinates, with fewer bits and with pooled tokens. For the control, storing the principal axes of
the vectors is compared with storing the first coordinates.
"""

from dataclasses import field
from typing import Literal, get_args

from studies.settings import CollectionName, EncoderStudy, different, launch

from paradigms.io.command_line import flags

Model = Literal["untrained", "control", "matryoshka", "coded", "both", "spans"]
DIM = 128  # coordinates per vector, as in ColBERT
BITS = 2  # per coordinate, for training and storing: fewer than an index's usual 4
VECTORS = 16  # per document of `spans`


@flags(seeds=[0, 1], document_length=64)
class Settings(EncoderStudy, CollectionName):
    """Settings for the collection, the training, and the stored vectors."""

    models: list[Model] = field(default_factory=lambda: list(get_args(Model)))
    dims: list[int] = field(default_factory=lambda: [64, 32, 16])
    """numbers of first coordinates to train on and to store"""

    def __post_init__(self) -> None:
        super().__post_init__()
        different(self, "models", "dims")
        if "control" not in self.models or not all(0 < dim < DIM for dim in self.dims):
            raise SystemExit(f"models must contain control, and dims must lie below {DIM}")


launch(__name__, Settings, __doc__, processes=True)  # before the slow imports

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fewer_bytes import BLOCK, LISTS, principal_axes
from matplotlib.figure import Figure
from studies.gains import differences, training_section
from studies.model_runs import StudyData, bind, encoder_job, open_study, run_jobs, values_of
from studies.pages import Measured, Rows, Section, publish, resampled
from studies.settings import lengths_of

from paradigms import PARADIGMS, Paradigm
from paradigms.core import Tokens
from paradigms.encoder.text import first_coordinates
from paradigms.find import Index, Store, kinds
from paradigms.store.kind import Kind
from paradigms.train import script

MEASURE = "nDCG@10"
FREE = ("models", "seeds")  # settings that may change in a results folder
FIRST = "first"
PRINCIPAL = "principal axes"
UNTRAINED = "untrained"


def main(settings: Settings) -> None:
    accelerator, console = script.begin(settings)
    data = open_study(settings, accelerator, console)
    bound = {"fingerprint": data.collection.fingerprint, "dim": DIM, "bits": BITS, "vectors": VECTORS}
    bind(settings, accelerator, FREE, ("backbone",), **bound)
    shorter = {"matryoshka": settings.dims}
    coded = {"coded_bits": BITS}
    methods: dict[str, dict[str, Any]] = {"matryoshka": shorter, "coded": coded, "both": shorter | coded}
    methods[UNTRAINED] = {"checkpoint": Path(settings.output), "read": lambda _: build("control", settings)}
    runs = [(name, seed) for seed in settings.seeds for name in settings.models]
    jobs = []
    for name, seed in runs:
        folder = Path(settings.output) / f"{name}-{seed}"
        work = partial(build, name, settings), partial(measure_model, name, data)
        jobs.append(encoder_job(f"{name}, seed {seed}", folder, seed, *work, data, **methods.get(name, {})))
    values: dict[str, list[Measured]] = {name: [] for name in settings.models}
    for (name, _), row in zip(runs, run_jobs(jobs, accelerator, console), strict=True):
        values[name].append(row)
    if accelerator.is_main_process:
        count = len(values["control"][0]["ways"]["all"]["values"])
        summary = (
            f"{len(data.collection.corpus):,} documents of at most {settings.document_length} tokens, "
            f"{count} test queries, seeds {settings.seeds}; {settings.steps} steps of "
            f"{settings.batch_size} queries, {settings.trained_layers} trained layers of {settings.backbone}."
        )
        publish(settings, "Fewer numbers", summary, sections(settings, values), accelerator)
    accelerator.end_training()


def build(name: str, settings: Settings) -> Paradigm:
    vectors = {"document_vectors": "spans", "vectors": VECTORS} if name == "spans" else {}
    options = lengths_of(settings) | vectors
    return PARADIGMS["colbert"](settings.backbone, dim=DIM, **options)


def ways(name: str, settings: Settings) -> Iterator[tuple[str, int, Kind, int, str]]:
    """Yield each way to store a model's documents: (name, coordinates, kind, tokens per vector, axes)."""
    exact = kinds.exact()
    coded = kinds.compressed(BITS, LISTS)
    for dim in (DIM, *settings.dims):
        title = "all" if dim == DIM else f"{dim} coordinates"
        yield title, dim, exact, 1, FIRST
        yield f"{title}, {BITS} bits", dim, coded, 1, FIRST
        if name != "spans":
            yield f"{title}, {BITS} bits, pool = 2", dim, coded, 2, FIRST
        if name == "control" and dim < DIM:
            yield f"{dim} {PRINCIPAL}", dim, exact, 1, PRINCIPAL


def measure_model(name: str, data: StudyData, model: Paradigm, index: Index) -> Measured:
    """Measure bytes per document and nDCG@10 of each query, for each way to store documents."""
    stored = index.store
    queries = list(data.test.queries.values())
    encoded = model.encode_queries(queries).to("cpu")
    results = {}
    for way, dim, kind, pool, axes in ways(name, data.settings):
        basis = torch.from_numpy(principal_axes(stored, dim)) if axes == PRINCIPAL else torch.eye(DIM)

        def shorter(tokens: Tokens, basis: torch.Tensor = basis, dim: int = dim) -> Tokens:
            turned = tokens.map(lambda t: t @ basis if t.is_floating_point() else t)
            return first_coordinates(turned, dim, model.encoder.settings.normalize)

        parts = (
            (stored.names(rows), shorter(stored.tokens(rows)))
            for rows in stored.blocks(BLOCK, np.arange(len(stored)))
        )
        store = Store.build_from(kind, parts, paradigm=model.name, dim=dim, count=len(stored), pool=pool)
        ranked = Index(store).search_tokens(model.recipe, shorter(encoded), 10)
        run = dict(zip(data.test.queries, ranked, strict=True))
        values = values_of(run, data.test, [MEASURE])[MEASURE]
        results[way] = {"bytes": store.bytes_per_document, "values": values}
    return {"ways": results}


def sections(settings: Settings, values: dict[str, list[Measured]]) -> dict[str, Section]:
    """Make the page's sections; the tests of all differences from the control are one family."""
    rows: Rows = []
    pairs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for name, seeds in values.items():
        for way in seeds[0]["ways"]:
            scores = np.array([seed["ways"][way]["values"] for seed in seeds])
            row = {"model": name, "stored": way, "bytes/document": seeds[0]["ways"][way]["bytes"]}
            row |= {MEASURE: scores, "minus the control": "–", "p (Holm)": "–"}
            if name != "control" and way in values["control"][0]["ways"]:
                control = np.array([seed["ways"][way]["values"] for seed in values["control"]])
                pairs[len(rows)] = (scores, control)
            rows.append(row)
    for place, (difference, p) in zip(pairs, differences(list(pairs.values())), strict=True):
        rows[place] |= {"minus the control": difference, "p (Holm)": p}
    text = (
        f"Intervals (95%) resample {resampled(len(settings.seeds))}; differences are paired, and their tests "
        "are one family. A line joins a model's best values up to each size."
    )
    return {
        "bytes": Section(f"{MEASURE} by bytes", text, rows, picture(rows)),
        "frontier": Section(
            f"Highest {MEASURE} of each model up to a number of bytes",
            "Ways to store that no way of the same model in as many or fewer bytes equals.",
            [row for row in rows if not any(beats(other, row) for other in rows)],
        ),
        "training": training_section({name: seeds for name, seeds in values.items() if name != UNTRAINED}),
    }


def beats(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """Return whether another way to store the same model takes no more bytes and has a higher mean."""
    bytes_ = "bytes/document"
    higher = np.mean(other[MEASURE]) > np.mean(row[MEASURE])
    return other["model"] == row["model"] and other[bytes_] <= row[bytes_] and bool(higher)


def picture(rows: Rows) -> Figure:
    """Plot nDCG@10 against bytes; a step line shows each model's best value up to that size."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row["model"] for row in rows):
        points = sorted((row for row in rows if row["model"] == name), key=lambda row: row["bytes/document"])
        x = [row["bytes/document"] for row in points]
        y = [float(row[MEASURE].mean()) for row in points]
        axes.plot(x, y, "o", label=name, markersize=4)
        highest = np.maximum.accumulate(y)
        axes.step(x, highest, where="post", linewidth=1, color=axes.lines[-1].get_color())
    axes.set(xscale="log", xlabel="bytes a document", ylabel=MEASURE)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)
    return figure
