"""The cost model against cases by hand and files on disk; the script end to end on a tiny collection."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import serving_costs
import torch
from serving_parts import machine, measure, model, paradigm
from serving_parts.model import Cost, Knobs, Machine, Option, Shape, Wanted

from paradigms import PARADIGMS
from paradigms.index import CompressedIndex, ExactIndex
from paradigms.index.coding import CODEC
from tests.tiny import WORDS

SHAPE = Shape(tokens=10.0, dim=32, query=4.0, lanes=16.0, extra=4, id_bytes=6.0)
KNOBS = Knobs(probes=8, candidates=5, ratio=0.5)
LENGTHS = {"query_length": 12, "document_length": 20}


def texts(count: int, seed: int = 0) -> dict[str, str]:
    words, draw = WORDS.split(), np.random.default_rng(seed)
    return {f"d{n}": " ".join(draw.choice(words, draw.integers(1, 16))) for n in range(count)}


# --- the model by hand ----------------------------------------------------------------------------------


def test_exact_cost_by_hand() -> None:
    cost = model.exact_cost(SHAPE, 100, 7.0)  # 1,000 vectors of 32 float16 and an id
    assert cost == Cost(
        stored=1000 * 68 + 100 * (4 + 6), held=700, ordered=68_000, scattered=0, flops=2 * 32 * 16 * 1000
    )
    assert cost.memory == 69_700


def test_compressed_cost_by_hand() -> None:
    cost = model.compressed_cost(SHAPE, 100, 7.0, 4, KNOBS)
    # 4√1000 = 126.5: 128 lists; 16 bytes of codes, 2 that number 1,000 tokens
    assert cost.stored == 1000 * (16 + 3 + 2 + 4) + 128 * (32 + 12) + 4 * 32 + 8 + 100 * (4 + 6)
    assert cost.held == 700 + 128 * (5 * 32 + 12) + 1000 / 16
    probed = 0.5 * 1000 * (1 - (15 / 16) ** 4)  # 8 of 128 lists, drawn four times: 113.8 tokens
    assert cost.ordered == pytest.approx(4 * 32 * 128 + 2 * probed + 50 * (16 + 3 + 4))
    # lines: a code each; all of the scales, numbers, offsets, marks and lives, which have fewer
    assert cost.scattered == pytest.approx(64 * (probed + 16 + 1 + 13 + 7 + 2))
    assert cost.flops == pytest.approx(2 * 32 * 16 * (128 + probed + 50))


def test_codes_are_of_whole_vectors_and_lines() -> None:
    narrow = model.compressed_cost(SHAPE, 100, 0.0, 1, KNOBS)  # 128 bits at least: 16 bytes of 32 numbers too
    probed = 0.5 * 1000 * (1 - (15 / 16) ** 4)
    assert narrow.flops == pytest.approx(2 * 128 * 16 * (128 + probed + 50))
    wide = replace(SHAPE, dim=384)
    lines = [model.compressed_cost(wide, 10**6, 0.0, bits, KNOBS).scattered for bits in (1, 2, 4, 8)]
    tokens = 0.5 * 10**7 * (1 - (1 - 8 / 2**14) ** 4)  # 4√10^7 = 12,649
    assert np.diff(lines) == pytest.approx([64 * tokens * more for more in (1, 1, 3)])  # of 1, 2, 3, 6 lines


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_costs_grow_with_documents(bits: int) -> None:
    def cost(n: int) -> Cost:
        if bits == 16:
            return model.exact_cost(SHAPE, n, 100.0)
        return model.compressed_cost(SHAPE, n, 100.0, bits, KNOBS)

    costs = [cost(10**n) for n in range(2, 10)]
    for name in ("stored", "held", "memory"):
        values = [getattr(c, name) for c in costs]
        assert values == sorted(values), name
        assert 9 < values[-1] / values[-2] < 11
    if bits != 16:  # with √ of them while the lists grow, in proportion once there are 65,536
        assert 2 < costs[3].flops / costs[2].flops < 5
        assert costs[-1].scattered / costs[-2].scattered == pytest.approx(10, rel=0.1)


def test_fewer_bits_and_probes_cost_less() -> None:
    wide = replace(SHAPE, dim=128)  # fewer numbers of 1 bit would fill no vector of codes
    found = [model.compressed_cost(wide, 10**6, 100.0, bits, KNOBS).stored for bits in (1, 2, 4, 8)]
    assert found == sorted(found)
    more = model.compressed_cost(SHAPE, 10**8, 100.0, 4, replace(KNOBS, probes=16))
    less = model.compressed_cost(SHAPE, 10**8, 100.0, 4, KNOBS)
    assert more.scattered == pytest.approx(2 * less.scattered, rel=1e-3)
    assert more.stored == less.stored


def test_the_bound_is_the_larger_of_reading_and_multiplying() -> None:
    cost = Cost(stored=0, held=0, ordered=200, scattered=30, flops=1000)
    given = Machine(ordered=100, scattered=10, memory=1)
    assert model.reading(cost, given) == 5
    assert model.bound(cost, given, flops=1000) == 5
    assert model.bound(cost, given, flops=100) == 10


def test_fixed_costs_and_slope_are_fitted() -> None:
    assert model.fitted([(1.0, 0.5), (3.0, 1.0), (9.5, 3.0)]) == (0.5, 3.0)
    assert model.fitted([(8.5, 0.5), (6.0, 1.0), (9.0, 2.0)]) == (5.0, 2.0)  # the first was disturbed
    assert model.fitted([(0.1, 0.5), (1.0, 3.0)]) == (0.0, 1.0)  # from a cache, below what memory gives


def test_a_flat_index_by_hand() -> None:
    cost = model.flat_cost(replace(SHAPE, tokens=1.0), 100, 7.0)
    assert cost == Cost(stored=100 * (4 * 32 + 6), held=700, ordered=100 * 4 * 32, scattered=0, flops=0)


def test_machines_are_as_few_as_hold_the_documents() -> None:
    for most in (1, 7, 30, 99, 100, 1000):
        count = model.machines(lambda share, most=most: share <= most, 100)
        assert math.ceil(100 / count) <= most
        assert count == 1 or math.ceil(100 / (count - 1)) > most
    with pytest.raises(ValueError, match="does not even hold one document"):
        model.machines(lambda share: False, 100)


# --- the model against what is on disk -------------------------------------------------------------------


@pytest.fixture(scope="module", params=["coil", "aligner"])
def encoded(request: pytest.FixtureRequest, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(0)
    settings = {"dim": 16, "pooled_dim": 32} if request.param == "coil" else {"dim": 16}
    paradigm = PARADIGMS[request.param](tiny_bert, **LENGTHS, **settings).eval()
    documents = texts(60)
    folder = tmp_path_factory.mktemp("encoded")
    index = ExactIndex.build(paradigm, documents.keys(), documents.values(), folder / "exact")
    return paradigm, index, paradigm.encode_queries(list(texts(5, 1).values()))


def test_bytes_by_the_model_are_those_of_the_files(encoded, tmp_path: Path) -> None:
    _, index, queries = encoded
    shape = paradigm.shape_of(index, queries)
    stored = sum(entry["bytes"] for entry in index.manifest["files"].values())
    assert model.exact_cost(shape, len(index), 0.0).stored == pytest.approx(stored)
    for bits in (1, 4, 8):
        for documents in (20, 60, 150):
            made, _ = measure.build_index(
                CompressedIndex, index, documents, tmp_path / f"{bits}-{documents}", 0, bits=bits
            )
            files = made.manifest["files"]
            header = (made.folder / files[CODEC]["file"]).read_bytes()[:8]
            exactly = sum(entry["bytes"] for entry in files.values()) - 8 - int.from_bytes(header, "little")
            ids, entries = files["documents.jsonl"]["bytes"], made.offsets[-1] / documents
            of = replace(shape, tokens=float(entries), id_bytes=ids / documents)
            assert model.compressed_cost(of, documents, 0.0, bits, KNOBS).stored == pytest.approx(exactly)


def test_what_a_process_holds(encoded, tmp_path: Path) -> None:
    """The model's part of the heap, that of the codec, is there: r is the same without it."""
    paradigm_, index, queries = encoded
    few, _ = measure.build_index(CompressedIndex, index, 60, tmp_path / "few", 0, lists=1)
    many, _ = measure.build_index(CompressedIndex, index, 60, tmp_path / "many", 0, lists=128)
    recipe = replace(paradigm_.recipe, search="gather")
    held = [measure.measure_index("", i, 0.0, recipe, queries, 3, 1).held for i in (few, many)]
    assert held[1] - held[0] == pytest.approx(127 * (5 * 32 + 12), rel=0.1)


# --- measuring -----------------------------------------------------------------------------------------


def test_copies_are_near_and_as_long(encoded) -> None:
    _, index, _ = encoded
    parts = list(measure.sized(index, 150, 0))
    names = [name for ids, _ in parts for name in ids]
    assert len(names) == len(set(names)) == 150
    assert names[:60] == index.ids
    vectors = torch.cat([tokens.vectors[tokens.mask] for _, tokens in parts]).double()
    first, second = vectors[: index.offsets[-1]], vectors[index.offsets[-1] : 2 * index.offsets[-1]]
    torch.testing.assert_close(first.norm(dim=1), second.norm(dim=1), rtol=1e-4, atol=1e-4)
    near = torch.cosine_similarity(first, second).mean()
    assert near == pytest.approx(1 / (1 + measure.NOISE**2) ** 0.5, abs=0.05)
    assert [ids for ids, _ in measure.sized(index, 7, 0)] == [index.ids[:7]]


def test_the_lists_that_a_query_looks_into_are_counted(encoded, tmp_path: Path) -> None:
    _, index, queries = encoded
    made, _ = measure.build_index(CompressedIndex, index, 60, tmp_path / "lists", 0, lists=16)
    made.probes = 16  # all of them, once
    assert measure.probed_ratio(made, queries) == pytest.approx(1)
    made.probes = 1
    alone = queries.map(lambda t: t[:, :, :1])
    near = alone.vectors[:, 0, 0] @ made._codec.centroids[:, : alone.vectors.shape[-1]].T
    sizes = np.bincount(made.fields["centroids"], minlength=16)[near.argmax(1)]
    assert measure.probed_ratio(made, alone) >= sizes.mean() / (made.offsets[-1] / 16) - 1e-9


def test_knobs_are_the_fewest_that_find_enough(encoded, tmp_path: Path) -> None:
    paradigm_, index, queries = encoded
    recipe = replace(paradigm_.recipe, align="query_to_document", align_knobs={}, normalise="query_tokens")
    made, _ = measure.build_index(CompressedIndex, index, 600, tmp_path / "index", 0, bits=8, lists=100)
    truth, _ = measure.build_index(ExactIndex, index, 600, tmp_path / "truth", 0)
    wanted = truth.search_tokens(recipe, queries, 5)

    def found(probes: int, candidates: int = 64) -> float:
        made.probes, made.candidates = probes, candidates
        return measure.recall(made.search_tokens(recipe, queries, 5), wanted)

    shares = {probes: found(probes) for probes in (8, 16, 32, 64)}
    least = (min(shares.values()) + max(shares.values())) / 2
    first = next((probes for probes, share in shares.items() if share >= least), 100)
    knobs = measure.enough_knobs(made, recipe, queries, 5, wanted, least)
    assert knobs == {"probes": first, "candidates": 64}
    knobs = measure.enough_knobs(made, recipe, queries, 5, wanted, 1.1)
    assert knobs == {"probes": 100, "candidates": 128}  # 8 · 128 are more than 600


def test_recall_is_of_what_was_wanted() -> None:
    wanted = [{"a": 2.0, "b": 1.0}, {"c": 1.0}, {}]
    assert measure.recall([{"a": 2.0, "x": 1.0}, {"c": 1.0}, {"y": 0.0}], wanted) == 0.75
    assert measure.recall([{}], [{}]) == 1.0


def test_engines_are_asked_what_they_know(tiny_bert: Path) -> None:
    models = {name: PARADIGMS[name](tiny_bert, **LENGTHS) for name in PARADIGMS}
    known = {name: measure.as_maxima(of) for name, of in models.items()}
    assert [name for name, of in known.items() if of is models[name]] == ["dpr", "me_bert", "colbert"]
    assert known["coil"] is known["aligner"] is None
    assert known["xtr"].recipe.align == "query_to_document"
    assert known["xtr"].recipe.search == "gather"


def test_speeds_are_of_bytes_and_products() -> None:
    rows = machine.memory_speed(1 << 22, 2, 0)
    assert [row["threads"] for row in rows] == [1, 2]
    assert all(1e8 < row[name] < 1e13 for row in rows for name in ("in order", "at random"))
    assert 1e8 < machine.kernel_speed(20, 2, 2, 0) < 1e13


# --- rules ---------------------------------------------------------------------------------------------


def option(engine: str, machines: int | None, seconds: float | None, recall: float | None = 1.0) -> Option:
    return Option(engine, 1.0, 1.0, machines, 0.01, seconds, recall, engine in ("Qdrant", "LanceDB"))


def test_what_to_take_by_the_rules() -> None:
    wanted = Wanted(latency=0.1, recall=0.9, machines=8)
    exact, coded = option("exact", 1, 0.05), option("compressed", 1, 0.02, 0.95)
    qdrant, lance = option("Qdrant", 8, None), option("LanceDB", None, None)
    slow, large = option("exact", 1, 0.2), option("exact", 40, 0.01)
    assert model.choose([exact, coded, qdrant, lance], wanted)[0] is exact
    assert model.choose([exact, option("FAISS", 1, 0.04), qdrant], wanted)[0].engine == "FAISS"
    assert model.choose([slow, coded, qdrant, lance], wanted)[0] is coded
    assert model.choose([large, coded, qdrant, lance], wanted)[0] is coded
    poor = option("compressed", 1, 0.01, 0.5)
    assert model.choose([large, poor, qdrant, lance], wanted)[0] is qdrant
    assert model.choose([large, poor, replace(qdrant, machines=9), lance], wanted)[0] is lance
    several = option("compressed", 4, 0.01)
    assert model.choose([large, several, poor], wanted)[0] is several
    found, rule = model.choose([replace(large, recall=0.8), poor], wanted)
    assert found.recall == 0.8
    assert rule == "shards"
    with pytest.raises(ValueError, match="nothing to choose from"):
        model.choose([], wanted)


# --- the script ----------------------------------------------------------------------------------------


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", texts(60)), ("queries", texts(8, 1))):
        lines = [json.dumps({"_id": id, "title": "", "text": text}) for id, text in rows.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    judged = [f"d{n}\td{n}\t1" for n in range(8)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    return folder


def test_the_script_measures_and_extrapolates(collection: Path, tiny_bert: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    settings = serving_costs.Settings(
        collection=str(collection), documents=40, queries=4, backbone=str(tiny_bert), bits=[4],
        growth=[2], k=5, rounds=1, threads=1, read=0.01, latency=1e6, output=str(tmp_path / "out"),
        query_length=8, document_length=16, paradigms=["dpr", "coil", "xtr"],
    )  # fmt: skip
    try:
        serving_costs.main(settings)
    finally:
        torch.set_num_threads(threads)
    read = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "out").glob("*.json")}
    assert not (tmp_path / "out" / "work").exists()
    assert [row["paradigm"] for row in read["vectors"]] == settings.paradigms
    for row in read["engines"]:
        if row["engine"] == "exact" or (row["engine"] in measure.EXTRAS and row["paradigm"] != "xtr"):
            assert row["recall@5"] == pytest.approx(1, abs=0.06), row
    check = read["check"]
    assert {(row["documents"], row["vectors"]) for row in check} == {(40, "real"), (80, "synthetic")}
    for row in check:
        assert row["measured / bound"] > 0
        if row["documents"] == 40:  # beside it the manifest, and the header of a safetensors file
            assert 0 < row["MB"] - row["MB by model"] < 3e-3
    dpr = [row for row in read["options"] if row["paradigm"] == "dpr" and row["engine"] == "exact"]
    assert dpr[0]["machines"] == dpr[1]["machines"] == 1
    assert dpr[1]["reading ms"] == pytest.approx(100 * dpr[0]["reading ms"])
    assert dpr[2]["machines"] == math.ceil(dpr[2]["RAM"] / 2**36)
    choices = {(row["paradigm"], row["documents"]): row["engine"] for row in read["choice"]}
    assert choices["dpr", 10**5] in ("exact", "FAISS")
    assert set(choices.values()) <= {*paradigm.NAMES.values(), "LanceDB", "Qdrant"}
    assert not {choices["coil", n] for n in settings.sizes} & {"LanceDB", "Qdrant"}
    assert (tmp_path / "out" / "tables.md").read_text().count("### ") == 7


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"paradigms": ["dsi"]}, "--paradigms: 'dsi' is none of dpr"),
        ({"bits": [3]}, "--bits are of 1, 2, 4 and 8"),
        ({"growth": []}, "--growth needs at least one value"),
        ({"sizes": [0]}, "--sizes needs at least one value, and none below 0"),
        ({"latency": 0.0}, "--latency must be positive"),
        ({"k": 0}, "--k must be at least 1"),
    ],
)
def test_settings_that_make_no_sense(setting: dict, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        serving_costs.Settings(**setting)
