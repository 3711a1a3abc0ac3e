"""Encoding: documents per CPU second, milliseconds per query, and nDCG@10 lost to narrower data types.

Our encoder in every precision is compared with sentence-transformers, ONNX Runtime and OpenVINO. All use the
same weights, texts and lengths, and times include tokenisation. Peers that are not installed are listed and
left out:

    pip install openvino nncf onnxruntime onnx

Systems take turns within a round, so that other load affects all systems alike. Medians of CPU seconds are
reported. The cosine compares a document's mean vector with the float32 vector from transformers. The rates of
matrix products are measured for the encoder's widest layer and are an upper limit for every system. Compare
ratios: seconds depend on the machine. ATEN_CPU_CAPABILITY=avx2 and ONEDNN_MAX_CPU_ISA=AVX2 restrict torch to
older instructions.

`quality` names collections. For each collection and precision, the report gives nDCG@10 minus float32's
nDCG@10 on the test queries, with a 95% bootstrap interval over queries. A precision becomes the default only
if all intervals lie within ±.005.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paradigms.io.command_line import command_line


@dataclass
class Settings:
    """Settings: the encoder, the texts, the systems and the rounds."""

    collection: str = "pydocs"
    """collection whose first long documents are encoded"""
    documents: int = 48
    length: int = 128
    """maximum number of tokens per document"""
    batch: int = 16
    """documents per pass of a peer; our encoder chooses the number itself"""
    query: str = "does a lack of vitamin d cause depression in adults"
    rounds: int = 5
    """rounds, in each of which every system is measured once"""
    queries: int = 20
    """number of repetitions of the query per round"""
    peers: bool = True
    calibration: int = 64
    """number of documents for calibrating OpenVINO's 8-bit scales, apart from the encoded documents"""
    threads: int = 1
    quality: list[str] = field(default_factory=list)
    """collections on which to measure quality, by name or folder"""
    paradigms: list[str] = field(default_factory=lambda: ["dpr", "colbert"])
    """paradigms whose quality is measured, untrained over the offline encoder"""
    most: int = 1_000
    """maximum documents per collection in `quality`, judged documents first; 0: all"""
    output: str = "results/benchmarks/encoding.json"


if __name__ == "__main__":  # before the slow imports
    given = command_line(Settings, __doc__ or "")

import numpy as np
import torch
from parts.shared import medians
from rich.table import Table
from torch import Tensor, nn

from paradigms import PARADIGMS, load
from paradigms.data import Collection, Corpus, load_collection
from paradigms.encoder import int8
from paradigms.encoder.backbone import load_backbone, load_tokenizer, packaged
from paradigms.encoder.precision import native_precision
from paradigms.evaluate import on_split
from paradigms.evaluate.measures import bootstrap_intervals
from paradigms.io.device import processor
from paradigms.io.files import write_json, write_text
from paradigms.io.terminal import Terminal
from paradigms.retrieve import Indexed

CPU = torch.device("cpu")
MEASURE, WITHIN = "nDCG@10", 0.005
Encode = Callable[[Sequence[str]], Any]
"""Texts → vectors [x, w], one per text, in the same order."""


class Absent(Exception):
    """The reason why a peer is left out."""


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    console, folder = Terminal(), tempfile.TemporaryDirectory()
    texts = long_documents(load_collection(settings.collection).corpus, settings)
    systems, absent = ours(settings), {}
    for name, make in (PEERS if settings.peers else {}).items():
        try:
            systems[name] = make(settings, texts, Path(folder.name))
        except (Absent, ImportError) as error:
            absent[name] = str(error)
    rows = timings(settings, systems, texts[: settings.documents])
    limits = products(settings)
    console.print(show(rows, "system"))
    console.print(show(limits, "product"))
    for name, why in absent.items():
        console.print(f"{name} is left out: {why}")
    costs = [cost for name in settings.quality for cost in quality(settings, load_collection(name))]
    if costs:
        console.print(show(costs, "collection"))
    found = {"settings": asdict(settings), "processor": processor(), "native": native_precision(CPU)}
    found |= {"rows": rows, "products": limits, "quality": costs, "absent": absent}
    write_json(Path(settings.output), found)
    page = "\n\n".join(markdown(table) for table in (rows, limits, costs) if table)
    write_text(Path(settings.output).with_suffix(".md"), page + "\n")


def long_documents(corpus: Corpus, settings: Settings) -> list[str]:
    """Return the longest documents, if possible with at least `length` words each, so that none is padded.

    The first `documents` texts are for encoding, the remaining texts for calibration.
    """
    wanted = settings.documents + settings.calibration
    texts = sorted(corpus, key=lambda text: -min(settings.length, len(text.split())))[:wanted]
    if len(texts) < wanted:
        raise SystemExit(f"{settings.collection} has {len(texts)} documents, and {wanted} are needed")
    return texts


def ours(settings: Settings) -> dict[str, Encode]:
    """Return our `encode_documents` (mean vectors of the offline encoder) in each precision for CPUs."""
    from dataclasses import replace

    from paradigms.encoder.precision import autocast

    model = load("offline", for_search=True)
    lengths = {"document_length": settings.length, "query_length": settings.length}
    encoder: Any = model.encoder
    encoder.settings = replace(encoder.settings, **lengths)
    encoder._layouts = {side: encoder._layout(side) for side in encoder._layouts}

    def encode(texts: Sequence[str], precision: str) -> Tensor:
        with autocast(CPU, precision):
            return model.encode_documents(texts).vectors[0, :, 0]

    names = {"no": "ours, float32", "bf16": "ours, bf16", "int8": "ours, int8"}
    return {name: lambda texts, precision=key: encode(texts, precision) for key, name in names.items()}


def tokens(settings: Settings, texts: Sequence[str]) -> dict[str, Tensor]:
    """Tokenise texts into inputs for transformers models."""
    how = {"padding": True, "truncation": True, "max_length": settings.length, "return_tensors": "pt"}
    return dict(tokenizer(texts, how))


def tokenizer(texts: Sequence[str], how: dict[str, Any]) -> Any:
    global _tokenizer
    if _tokenizer is None:
        _tokenizer = load_tokenizer(packaged("offline"))
    return _tokenizer(list(texts), **how)


_tokenizer: Any = None


def pooled(states: Tensor, attention: Tensor) -> Tensor:
    """Return each text's mean token vector, normalised to length 1."""
    weight = attention[..., None].float()
    return nn.functional.normalize((states.float() * weight).sum(1) / weight.sum(1), dim=-1)


def in_batches(settings: Settings, run: Callable[[dict[str, Tensor]], Tensor]) -> Encode:
    """Wrap a peer's encoder of token ids, so that it takes texts in batches."""

    def encode(texts: Sequence[str]) -> Tensor:
        parts = []
        for first in range(0, len(texts), settings.batch):
            rows = tokens(settings, texts[first : first + settings.batch])
            parts.append(pooled(run(rows), rows["attention_mask"]))
        return torch.cat(parts)

    return encode


def transformers(settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
    model = load_backbone(packaged("offline")).eval()

    @torch.inference_mode()
    def run(rows: dict[str, Tensor]) -> Tensor:
        return model(**rows)[0]

    return in_batches(settings, run)


def sentence_transformers(dtype: str) -> Callable[..., Encode]:
    def make(settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
        from sentence_transformers import SentenceTransformer

        options = {"model_kwargs": {"dtype": getattr(torch, dtype)}, "device": "cpu"}
        model = SentenceTransformer(str(packaged("offline")), **options)
        model.max_seq_length = settings.length
        how = {"batch_size": settings.batch, "convert_to_tensor": True, "normalize_embeddings": True}
        return lambda texts: model.encode(list(texts), show_progress_bar=False, **how).float()

    return make


def exported(settings: Settings, texts: Sequence[str], folder: Path) -> Path:
    """Export the encoder as an ONNX file, if the file does not exist."""
    file = folder / "encoder.onnx"
    if not file.is_file():
        import onnx  # noqa: F401  which torch's export needs

        class States(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = load_backbone(packaged("offline")).eval()

            def forward(self, ids: Tensor, attention: Tensor, types: Tensor) -> Tensor:
                return self.model(input_ids=ids, attention_mask=attention, token_type_ids=types)[0]

        rows, names = tokens(settings, texts[:2]), ["input_ids", "attention_mask", "token_type_ids"]
        axes = {name: {0: "texts", 1: "tokens"} for name in (*names, "states")}
        torch.onnx.export(
            States(),
            tuple(rows[name] for name in names),
            str(file),
            input_names=names,
            output_names=["states"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return file


def onnx_runtime(bits: int) -> Callable[..., Encode]:
    def make(settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
        import onnxruntime

        file = exported(settings, texts, folder)
        if bits == 8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            whole, file = file, folder / "int8.onnx"
            quantize_dynamic(whole, file, weight_type=QuantType.QInt8, per_channel=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = settings.threads, 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]

        def run(rows: dict[str, Tensor]) -> Tensor:
            return torch.from_numpy(session.run(None, {name: rows[name].numpy() for name in names})[0])

        return in_batches(settings, run)

    return make


def openvino(kind: str) -> Callable[..., Encode]:
    def make(settings: Settings, texts: Sequence[str], folder: Path) -> Encode:
        import openvino as ov

        core = ov.Core()
        model = core.read_model(exported(settings, texts, folder))
        if kind == "int8":
            import nncf

            others = texts[settings.documents :]
            rows = [{n: t.numpy() for n, t in tokens(settings, [text]).items()} for text in others]
            how = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(rows)}
            model = nncf.quantize(model, nncf.Dataset(rows), **how)
        options = {"INFERENCE_NUM_THREADS": settings.threads, "PERFORMANCE_HINT": "LATENCY"}
        options |= {"INFERENCE_PRECISION_HINT": "f32" if kind == "f32" else "bf16"}
        if kind != "f32" and native_precision(CPU) != "bf16":
            if kind == "bf16":
                raise Absent("the processor has no bf16")
            options["INFERENCE_PRECISION_HINT"] = "f32"
        request = core.compile_model(model, "CPU", options).create_infer_request()

        def run(rows: dict[str, Tensor]) -> Tensor:
            found = request.infer({name: values.numpy() for name, values in rows.items()})
            return torch.from_numpy(np.array(next(iter(found.values()))))

        return in_batches(settings, run)

    return make


PEERS: dict[str, Callable[..., Encode]] = {
    "transformers, float32": transformers,
    "sentence-transformers, float32": sentence_transformers("float32"),
    "sentence-transformers, bf16": sentence_transformers("bfloat16"),
    "ONNX Runtime, float32": onnx_runtime(32),
    "ONNX Runtime, int8 dynamic": onnx_runtime(8),
    "OpenVINO, float32": openvino("f32"),
    "OpenVINO, bf16": openvino("bf16"),
    "OpenVINO, int8 static": openvino("int8"),
}


def timings(settings: Settings, systems: dict[str, Encode], texts: list[str]) -> list[dict[str, Any]]:
    """Time every system in alternating rounds, and return one row per system."""
    exact = transformers(settings, texts, Path())(texts)
    encodes = list(systems.values())
    seconds = medians([lambda e=e: e(texts) for e in encodes], settings.rounds, time.process_time)
    alone: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(settings.rounds):
        for name, encode in systems.items():
            run = [lambda e=encode: e([settings.query])]
            alone[name] += medians(run, settings.queries, time.process_time)
    rows = []
    for (name, encode), taken in zip(systems.items(), seconds, strict=True):
        vectors = nn.functional.normalize(torch.as_tensor(encode(texts)).float(), dim=-1)
        rows.append(
            {
                "system": name,
                "documents a CPU s": len(texts) / taken,
                "CPU ms a query": 1000 * statistics.median(alone[name]),
                "cosine": float((vectors * exact).sum(-1).mean()),
            }
        )
    return rows


def products(settings: Settings) -> list[dict[str, Any]]:
    """Measure GFLOP/s of x Wᵀ for the shape of the encoder's widest layer."""
    rows, wide, narrow = settings.batch * settings.length, 1536, 384
    x, weight = torch.randn(rows, narrow), torch.randn(wide, narrow)
    packed = int8.quantised(weight)
    whole = torch.randint(1, 256, x.shape, dtype=torch.uint8)
    half = [t.bfloat16() for t in (x, weight)]
    ways: dict[str, Callable[[], Tensor]] = {
        "float32": lambda: x @ weight.t(),
        "bf16": lambda: half[0] @ half[1].t(),
        "int8": lambda: int8.shifted_product(whole, packed),
    }
    seconds = medians(list(ways.values()), 4 * settings.rounds, time.process_time)
    work = 2e-9 * rows * wide * narrow
    return [{"product": name, "GFLOP/s": work / taken} for name, taken in zip(ways, seconds, strict=True)]


def quality(settings: Settings, collection: Collection) -> list[dict[str, Any]]:
    """Measure nDCG@10 of every narrower precision minus float32's, on a collection's test queries."""
    split, corpus = collection.split("test"), collection.corpus
    if settings.most:
        judged = dict.fromkeys(id for grades in split.judgements.values() for id in grades)
        ids = list(dict.fromkeys([*(id for id in corpus.ids if id in judged), *corpus.ids]))[: settings.most]
        kept = set(ids)
        corpus = corpus.only([id for id in corpus.ids if id in kept])
        there = [
            q for q, grades in split.judgements.items() if any(g > 0 and d in kept for d, g in grades.items())
        ]
        split = split.only(there)
    rows = []
    for name in settings.paradigms:
        model = PARADIGMS[name]("offline", document_length=settings.length)
        values = {}
        for precision in ("no", "bf16", "int8"):
            index = Indexed.build(model, corpus, precision=precision)
            measured = on_split(index.search(split.queries, 10), split, [MEASURE])
            values[precision] = measured.weighted(MEASURE)
        for precision in ("bf16", "int8"):
            difference = values[precision] - values["no"]
            [interval] = bootstrap_intervals(difference[None])
            row = {"collection": collection.name, "paradigm": name, "precision": precision}
            row |= {"documents": len(corpus), "queries": len(difference), "float32": values["no"].mean()}
            row |= dict(zip(("difference", "low", "high"), interval, strict=True))
            row["within"] = bool(interval.low >= -WITHIN and interval.high <= WITHIN)
            rows.append({key: float(v) if isinstance(v, np.floating) else v for key, v in row.items()})
    return rows


def cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if name in ("difference", "low", "high"):
        return f"{value:+.4f}".replace("0.", ".", 1)
    if name in ("cosine", "float32"):
        return f"{value:.4f}"
    return f"{value:.1f}"


def show(rows: Sequence[dict[str, Any]], first: str) -> Table:
    table = Table()
    for name in rows[0]:
        table.add_column(name, justify="left" if name == first else "right")
    for row in rows:
        table.add_row(*(cell(name, value) for name, value in row.items()))
    return table


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(rows[0]), ["---"] + ["---:"] * (len(rows[0]) - 1)]
    lines += [[cell(name, value) for name, value in row.items()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(Settings(**given))
