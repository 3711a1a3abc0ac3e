"""Measure encoding speed for documents and queries, and the nDCG@10 lost to narrower data types.

Our encoder in every precision, and exported to ONNX, is compared with sentence-transformers and OpenVINO. All
use the same weights, texts and lengths, and times include tokenisation. Peers that are not installed are
listed and left out:

    pip install onnx onnxruntime openvino nncf

Systems take turns within a round, so that other load affects all systems alike. Medians of CPU seconds are
reported. The column `cosine` compares a document's mean vector with the float32 vector from transformers.
Compare ratios: seconds depend on the machine. ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2 restrict
torch to older instructions; ONNX Runtime has no such setting.

`quality` names collections. For each collection and precision, the report gives nDCG@10 minus float32's
nDCG@10 on the test queries, with a 95% bootstrap interval over queries. A precision becomes the default only
if all intervals lie within ±.005.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from parts.settings import Benchmark
from studies.settings import CollectionName, Documents, Queries, Rounds, Threads, launch, refusing

from paradigms.io.command_line import flags


@flags(documents=48, queries=20)
class Settings(Benchmark, Threads, Rounds, CollectionName, Documents, Queries):
    """Settings for the texts and the rounds.

    The collection's first long documents are encoded, without documents only `quality` is measured; `queries`
    is the number of repetitions of the query per round.
    """

    calibration: int = 64
    """number of documents, besides the encoded ones, for calibrating OpenVINO's 8-bit scales"""
    quality: list[str] = field(default_factory=list)
    """collections on which to measure quality, by name or folder"""
    paradigms: list[str] = field(default_factory=lambda: ["dpr", "colbert"])
    """paradigms to measure on `quality`, untrained, over the offline encoder"""


launch(__name__, Settings, __doc__)  # before the slow imports

import numpy as np
import torch
from parts.measuring import medians
from studies.model_runs import measured_once
from studies.pages import Rows, Section, publish
from torch import Tensor, nn

from paradigms import PARADIGMS, export, load
from paradigms.data import Collection, Corpus, load_collection
from paradigms.encoder.backbone import load_backbone, load_tokenizer
from paradigms.encoder.exported import INPUTS
from paradigms.encoder.precision import PRECISIONS, autocast, native_precision
from paradigms.encoder.sources import packaged
from paradigms.evaluate import on_split
from paradigms.evaluate.measures import seeds_interval
from paradigms.io.command_line import folder_name
from paradigms.io.device import processor
from paradigms.io.files import lock_until_exit
from paradigms.io.terminal import Terminal
from paradigms.retrieve import Indexed
from paradigms.saved import ONNX

CPU = torch.device("cpu")
LENGTH = 128  # tokens of a document, at most
BATCH = 16  # documents per pass of a peer; our encoder chooses the number itself
QUERY = "does a lack of vitamin d cause depression in adults"
MEASURE, WITHIN = "nDCG@10", 0.005
NARROW = ("bf16", "onnx-int8")  # precisions and layouts whose quality is measured
Encode = Callable[[Sequence[str]], Any]
"""Texts → vectors [x, w], one per text, in the same order."""


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    console = Terminal()
    folder = lock_until_exit(settings.output)
    sections = {}
    if settings.documents:
        rows, absent = speeds(settings)
        for name, why in absent.items():
            console.print(f"{name} is left out: {why}")
        sections["speed"] = Section("Encoding, by system", "", rows)
    costs: Rows = []
    for name in settings.quality:
        with refusing():
            collection = load_collection(name)
        for paradigm in settings.paradigms:
            costs += quality(settings, collection, paradigm, folder, console)
    sections["quality"] = Section(f"{MEASURE} minus float32's", "95% intervals over queries.", costs)
    cut = f"Documents of at most {LENGTH} tokens; {settings.threads} thread of {processor()}"
    publish(settings, "Encoding", f"{cut}; native precision: {native_precision(CPU)}.", sections)


def speeds(settings: Settings) -> tuple[Rows, dict[str, str]]:
    """Time all systems. Returns one row per system, and a dict from each missing peer to the reason."""
    texts = long_documents(load_collection(settings.collection).corpus, settings)
    systems = {}
    absent = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in SYSTEMS.items():
            try:
                systems[name] = make(settings, texts, Path(folder))
            except ImportError as error:
                absent[name] = str(error)
        return timings(settings, systems, texts[: settings.documents]), absent


def long_documents(corpus: Corpus, settings: Settings) -> list[str]:
    """Return the longest documents, up to LENGTH words: those to encode, then those for calibration."""
    count = settings.documents + settings.calibration
    texts = sorted(corpus, key=lambda text: -min(LENGTH, len(text.split())))[:count]
    if len(texts) < count:
        raise SystemExit(f"{settings.collection} has {len(texts)} documents, and {count} are needed")
    return texts


def encoder_of(model: Any, precision: str = "no") -> Encode:
    """Return a function that encodes texts as a model's mean vectors, documents and queries alike."""
    encoder: Any = model.encoder
    encoder.settings = replace(encoder.settings, document_length=LENGTH, query_length=LENGTH)
    encoder._layouts = {side: encoder._layout(side) for side in encoder._layouts}

    def encode(texts: Sequence[str]) -> Tensor:
        with autocast(CPU, precision):
            return model.encode_documents(texts).vectors[0, :, 0]

    return encode


def ours(precision: str, settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
    return encoder_of(load("offline", for_search=True), precision)


def onnx(layout: str, settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
    """Return our encoder as ONNX Runtime computes it. layout: "onnx" or "onnx-int8"."""
    return encoder_of(load(exported(folder, layout), for_search=True))


def exported(folder: Path, layout: str = "onnx") -> Path:
    place = folder / layout
    return place if place.is_dir() else export(load("offline"), layout, place)


def tokens(texts: Sequence[str]) -> dict[str, Tensor]:
    tokenizer = offline_tokenizer()
    return dict(tokenizer(list(texts), padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"))


@cache
def offline_tokenizer() -> Any:
    return load_tokenizer(packaged("offline"))


def pooled(states: Tensor, attention: Tensor) -> Tensor:
    """Return each text's mean token vector, normalised to length 1."""
    weight = attention[..., None].float()
    return nn.functional.normalize((states.float() * weight).sum(1) / weight.sum(1), dim=-1)


def in_batches(run: Callable[[dict[str, Tensor]], Tensor], texts: Sequence[str]) -> Tensor:
    """Encode texts in batches with a peer's encoder, which takes token ids."""
    parts = []
    for first in range(0, len(texts), BATCH):
        rows = tokens(texts[first : first + BATCH])
        parts.append(pooled(run(rows), rows["attention_mask"]))
    return torch.cat(parts)


def transformers(settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
    model = load_backbone(packaged("offline")).eval()

    @torch.inference_mode()
    def run(rows: dict[str, Tensor]) -> Tensor:
        return model(**rows)[0]

    return partial(in_batches, run)


def sentence_transformers(dtype: str, settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    number = {"dtype": getattr(torch, dtype)}
    model = SentenceTransformer(str(packaged("offline")), model_kwargs=number, device="cpu")
    model.max_seq_length = LENGTH

    def run(texts: Sequence[str]) -> Tensor:
        options = {"batch_size": BATCH, "convert_to_tensor": True, "normalize_embeddings": True}
        return model.encode(list(texts), show_progress_bar=False, **options).float()

    return run


def openvino(kind: str, settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
    import openvino as ov

    core = ov.Core()
    model = core.read_model(exported(folder) / "backbone" / ONNX)
    if kind == "int8":
        import nncf

        others = texts[settings.documents :]
        rows = [{n: t.numpy() for n, t in tokens([text]).items() if n in INPUTS} for text in others]
        transformer = nncf.ModelType.TRANSFORMER
        model = nncf.quantize(model, nncf.Dataset(rows), model_type=transformer, subset_size=len(rows))
    native = native_precision(CPU) == "bf16"
    if kind == "bf16" and not native:
        raise ImportError("the processor has no bf16")
    options = {"INFERENCE_NUM_THREADS": settings.threads, "PERFORMANCE_HINT": "LATENCY"}
    options["INFERENCE_PRECISION_HINT"] = "bf16" if native and kind != "f32" else "f32"
    request = core.compile_model(model, "CPU", options).create_infer_request()

    def run(rows: dict[str, Tensor]) -> Tensor:
        outputs = request.infer({name: rows[name].numpy() for name in INPUTS})
        return torch.from_numpy(np.array(next(iter(outputs.values()))))

    return partial(in_batches, run)


# Name -> what makes the system from the settings, the texts and a temporary folder.
SYSTEMS: dict[str, Callable[..., Encode]] = {
    "ours, float32": partial(ours, "no"),
    "ours, bf16": partial(ours, "bf16"),
    "ours as ONNX, float32": partial(onnx, "onnx"),
    "ours as ONNX, int8": partial(onnx, "onnx-int8"),
    "transformers, float32": transformers,
    "sentence-transformers, float32": partial(sentence_transformers, "float32"),
    "sentence-transformers, bf16": partial(sentence_transformers, "bfloat16"),
    "OpenVINO, float32": partial(openvino, "f32"),
    "OpenVINO, bf16": partial(openvino, "bf16"),
    "OpenVINO, int8 static": partial(openvino, "int8"),
}


def timings(settings: Settings, systems: dict[str, Encode], texts: list[str]) -> list[dict[str, Any]]:
    exact = transformers(settings, texts, Path())(texts)
    encodes = list(systems.values())
    seconds = medians([partial(e, texts) for e in encodes], settings.rounds, time.process_time)
    alone: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(settings.rounds):
        for name, encode in systems.items():
            run = [partial(encode, [QUERY])]
            alone[name] += medians(run, settings.queries, time.process_time)
    rows = []
    for (name, encode), taken in zip(systems.items(), seconds, strict=True):
        vectors = nn.functional.normalize(torch.as_tensor(encode(texts)).float(), dim=-1)
        row = {"system": name, "documents a CPU s": len(texts) / taken}
        row["CPU ms a query"] = 1000 * statistics.median(alone[name])
        rows.append(row | {"cosine": float((vectors * exact).sum(-1).mean())})
    return rows


def quality(settings: Settings, collection: Collection, name: str, folder: Path, console: Terminal) -> Rows:
    """Measure nDCG@10 of bf16, and of 8 bits in ONNX Runtime, minus float32's, on the test queries."""
    split = collection.split("test")
    corpus = collection.corpus

    def values_of(precision: str) -> list[float]:
        console.print(f"{collection.name}, {name}, {precision}: {len(corpus):,} documents …")
        model: Any = PARADIGMS[name]("offline", document_length=LENGTH)
        if precision not in PRECISIONS:
            model = load(export(model, precision, folder / f"{name}-{precision}"), for_search=True)
        index = Indexed.build(model, corpus, precision=precision if precision in PRECISIONS else "no")
        result = on_split(index.search(split.queries, 10), split, [MEASURE])
        return result.weighted(MEASURE).tolist()

    question = {"content": collection.fingerprint, "length": LENGTH}
    question |= {"processor": processor(), "native precision": native_precision(CPU)}
    values = {}
    for precision in ("no", *NARROW):
        file = folder / f"{folder_name(collection.name)}-{name}-{precision}.json"
        values[precision] = np.array(measured_once(file, question, partial(values_of, precision)))
    rows = []
    for precision in NARROW:
        interval = seeds_interval((values[precision] - values["no"])[None])
        row: dict[str, Any] = {"collection": collection.name, "paradigm": name, "precision": precision}
        row |= {"documents": len(corpus), "queries": len(values["no"]), "float32": values["no"].mean()}
        row["difference"] = "{:+.4f} [{:+.4f}, {:+.4f}]".format(*interval)
        row["within"] = "yes" if interval.low >= -WITHIN and interval.high <= WITHIN else "no"
        rows.append(row)
    return rows
