"""The pages name what is there: links, paths, functions, imports. Commands are parsed, and short ones run."""

import itertools
import json
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
from studies import page_blocks

from paradigms import PARADIGMS
from paradigms.align import ALIGNMENTS
from paradigms.cli.arguments import main, parser
from paradigms.io.plugins import LOADED
from paradigms.retrieve import Indexed
from tests import needs
from tests.encoder.test_published import published
from tests.experiments.scripts import run, settings
from tests.test_bge_m3 import write_m3
from tests.tiny import LONG, write_checkpoint, write_collection
from tests.tiny_hub import offline_hub
from tests.tiny_pages import picture, write_colpali

ROOT = Path(__file__).parents[1]
ROOMS = [f"{room}/**/*.md" for room in ("paradigms", "theory", "experiments")]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(page for room in ROOMS for page in sorted(ROOT.glob(room))),
]
EXTRAS = {
    "import ray": "ray",
    "from sentence_transformers": "sentence_transformers",
    "paradigms.engines.pyterrier": "pyterrier",
    "LanceEngine": "lancedb",
    "onnx": "onnx",
}


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request):
    return request.param


def commands(page: Path) -> list[str]:
    """The commands of a page's blocks, each on one line and without what runs them."""
    lines = page.read_text("utf-8").replace("\\\n", " ").splitlines()
    results = (
        re.search(r"^    .*?(experiments/\S+\.py|(?<=bin/)paradigms (?=\w))(.*)", line) for line in lines
    )
    return [match[1] + match[2].partition("   #")[0] for match in results if match]


def blocks(page: Path) -> list[str]:
    """The Python of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def lacks_an_extra(block: str) -> bool:
    """Whether a block uses a library that `make extras` installs, and it is absent."""
    return any(used in block and not find_spec(library) for used, library in EXTRAS.items())


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s\"]*)#?([^)\s\"]*)\)", page.read_text("utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def test_pages_end_before_the_reader_does():
    """Bounds of words, also of all pages together, and of tables. Generated details have none."""
    everywhere = [*PAGES, ROOT / "CHANGELOG.md", *ROOT.glob("tests/**/*.md")]
    pages = {str(page.relative_to(ROOT)): page for page in everywhere if not page.name.endswith("details.md")}
    words = {name: len(page.read_text("utf-8").split()) for name, page in pages.items()}
    bounds = {
        "README.md": 1_300,
        "experiments/VERDICTS.md": 1_800,
        "experiments/papers/lee2023/README.md": 1_400,
    }
    assert not {name: count for name, count in words.items() if count > bounds.get(name, 1_250)}
    assert sum(words.values()) <= 40_000
    for name, page in pages.items():
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text("utf-8"), re.MULTILINE):
            heading, *rows = table.splitlines()
            columns = len(re.findall(r"(?<!\\)\|", heading)) - 1
            assert columns <= 7, f"{name}: {heading}"
            most = 30 if heading.startswith("| study | claim | before |") else 14
            assert len(rows) - 1 <= most, f"{name}: {heading}"


def test_tables_are_those_of_the_results(page):
    """A page is not older than the results beside it: `fill_pages.py` would change nothing."""
    filled_page = page_blocks.Page(page)
    assert page_blocks.filled(filled_page) == page.read_text("utf-8")
    if filled_page.details:
        assert page_blocks.details(filled_page) == filled_page.details.read_text("utf-8")


def test_paths_exist(page):
    named = re.findall(
        r"(?<![\w/.-])(?:paradigms|theory|experiments|tests)/[\w./-]*\w", page.read_text("utf-8")
    )
    assert not [name for name in named if not (ROOT / name).exists()]


def test_commands_are_understood(page, tmp_path, monkeypatch):
    """The scripts' parsers accept them: names, types and choices of settings, and configuration files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.syspath_prepend(ROOT / "experiments/benchmarks")
    monkeypatch.setattr("paradigms.io.command_line.choose_device", lambda name: None)  # for this process
    for command in commands(page):
        script, *arguments = shlex.split(command)
        with patch.dict(PARADIGMS), patch.dict(ALIGNMENTS):  # plug-ins
            if script == "paradigms":
                parser().parse_args(arguments)
            else:
                settings(Path(script).stem, *arguments)
        while LOADED:  # the next command imports its plug-ins again
            sys.modules.pop(LOADED.pop().stem, None)


@needs.offline_encoder
@pytest.mark.parametrize("name", [str(page.relative_to(ROOT)) for page in PAGES if blocks(page)])
def test_python_and_the_terminal_as_printed(name, request, tmp_path, monkeypatch):
    """The Python of a page, then its commands on a folder of notes, in one folder and in order."""
    if name != "README.md":
        request.getfixturevalue("tiny_offline")
    monkeypatch.chdir(tmp_path)
    hub = offline_hub(monkeypatch, tmp_path / "hub")
    notes = tmp_path / "path/to/notes"
    notes.mkdir(parents=True)
    write_checkpoint("qwen3", tmp_path / "qwen3")
    published(tmp_path / "qwen3", tmp_path / "path/to/decoder", {"pooling_mode": "lasttoken"})
    write_colpali(tmp_path / "path/to/colpali")
    write_m3(hub("BAAI/bge-m3"))
    modern = write_checkpoint("modernbert", hub("answerdotai/ModernBERT-base")) / "config.json"
    modern.write_text(json.dumps(json.loads(modern.read_text()) | LONG))
    (tmp_path / "path/to/pages").mkdir()
    picture(0).save(tmp_path / "path/to/pages/page-3.png")
    what, how = ("certificate", "key", "token", "account"), ("renew", "revoke", "copy", "print", "send")
    for n, (noun, verb) in enumerate(itertools.product(what, how)):
        (notes / f"{n}.md").write_text(
            f"To {verb} the {noun} of host {n}, call {verb} with its file. Restart."
        )
    if name == "paradigms/saving/README.md":  # what `make compare` and the first page make
        colbert = PARADIGMS["colbert"]("offline")
        colbert.save_pretrained("results/compare-pydocs/colbert/checkpoint")
        Path("results/compare-pydocs/config.json").write_text('{"collection": "pydocs"}')
        Indexed.build(colbert, {"cat": "A cat is an animal."}, "results/index")
    if name == "experiments/trainings.md":
        debian, texts = tmp_path / "path/to/debian", [f"Manual of program {n}." for n in range(2000)]
        debian.mkdir()
        splits = {"train": range(1540), "dev": range(1540, 1600), "test": range(1600, 2000)}
        write_collection(debian, texts, [f"What does program {n} do?" for n in range(2000)], splits)
    page: dict[str, object] = {}  # a block may continue the one before it
    with patch.dict(ALIGNMENTS), patch.dict(PARADIGMS):
        for block in itertools.filterfalse(lacks_an_extra, blocks(ROOT / name)):
            exec(block, page)
    if name.startswith("experiments/how_to"):  # what their page on training makes
        PARADIGMS["colbert"]("offline").save_pretrained("results/own/checkpoint")
    for command in commands(ROOT / name):
        script, *arguments = shlex.split(command)
        missing = [
            a for a in arguments if a.startswith(("path/to", "results", "cranfield")) and not Path(a).exists()
        ]
        if "minilm-8" in arguments and not find_spec("onnx"):  # an exported model
            continue
        if script == "paradigms" and not missing and arguments[0] != "serve":
            main(arguments)


@needs.offline_encoder
def test_pictures_are_those_of_the_results(tmp_path):
    """The committed pictures have the systems, tokens and ticks that `pictures.py` draws today."""
    run("pictures", output=tmp_path)
    for name in ("which_paradigm.svg", "learning.svg", "ideas.svg"):
        committed = ROOT / "experiments" / "results" / name
        texts = [
            re.findall(r">([^<]+)</text>", file.read_text("utf-8")) for file in (tmp_path / name, committed)
        ]
        assert texts[0] == texts[1] != []


def numbers(study: str, section: str, column: str, *beginnings: str) -> list[float]:
    """Return the numbers of a cell in the first row whose cells are `beginnings`, or begin with them."""
    rows = json.loads((ROOT / f"experiments/{study}.json").read_text("utf-8"))["sections"][section]["rows"]
    begin = [r for r in rows if all(any(str(c).startswith(b) for c in r.values()) for b in beginnings)]
    row = next((r for r in begin if {*beginnings} <= {*map(str, r.values())}), begin[0])
    return [float(number) for number in re.findall(r"-?\d*\.\d+", str(row[column]))]


def test_sentences_have_the_numbers_of_the_results():
    """The findings of the README and of `which_paradigm.md`, which no script writes."""

    def compared(study: str, column: str = "nDCG@10, whole corpus") -> dict[str, list[float]]:
        names = ("bm25", "dpr", "me_bert", "colbert")
        return {name: numbers(f"results/{study}", "overview", column, name) for name in names}

    studies = ("senses", "debian-28682-two-seeds", "debian-28682-t5", "compare-pydocs")
    senses, debian, t5, pydocs = map(compared, studies)
    ended = [{name: values[-3] for name, values in of.items()} for of in (debian, senses)]
    words = compared("compare-pydocs", "nDCG@10, parameters")
    after = [{name: values[-3] for name, values in of.items()} for of in (debian, pydocs, words)]
    dsi = numbers("results/debian-28682-dsi", "overview", "nDCG@10, whole corpus", "dsi")
    lee = "papers/lee2023/results/token-retrieval-debian-28682"
    gold = "P(gold) in the first 100: XTR (k_train = 0.01) −"
    than, double = (numbers(lee, "claims", "measured", f"{gold} {n}ColBERT")[0] for n in ("", "2 · "))
    few, whole, xtr = "imputing, k' = 100", "gathering, k' = 100", "XTR (k_train = 0.01),"
    lost = f"RR@10: {xtr} {few} − {xtr} {whole} − ColBERT, {few} + ColBERT, {whole}"
    lost_more, behind = (
        numbers(f"{lee}-t5-all", "claims", "measured", text)
        for text in (lost, f"nDCG@10: {xtr} {few} − ColBERT, {whole}")
    )
    qian = "papers/qian2022/results/salience-pruning-debian-t5"
    kept = numbers(
        qian, "claims", "measured", "RR@10: entropic, mean over β^d up to 20% − entropic, all tokens − IDF"
    )
    luan = "papers/luan2021/results/capacity-debian"
    passages = [numbers(luan, "table_retrieve", "50", of)[0] for of in ("ME-BERT", "DE-BERT", "BM25-uni")]
    wu = "papers/wu2024/results/identifiers-squad"
    names = ("DSI", "DSI-place", "DSI-PAWA", "DSI-atomic", "RIPOR")
    decoders = [numbers(wu, "retrieve", "R@1", name)[0] for name in names]
    pruned = numbers("results/fewer-bytes", "ways", "minus all tokens", "pruned", "keep=0.25")
    readme = [
        "nDCG@10 {colbert:.2f}, {dpr:.2f}, {bm25:.2f};".format(**ended[0]),
        "better than BM25, {colbert:.2f}, {bm25:.2f} |".format(**ended[1]),
        f"lift one vector from {t5['dpr'][0]:.2f} to {t5['dpr'][1]:.2f} and ",
        f"ColBERT from {t5['colbert'][0]:.2f} to {t5['colbert'][1]:.2f};",
        f"as ColBERT, {2 * than - double:.2f} and {than - double:.2f} of the first 100.",
        "cost ColBERT {:.2f} RR@10 [{:.2f}, {:.2f}] more, and ".format(*lost_more),
        "XTR's nDCG@10 is {0:.2f} lower [{2:.2f}, {1:.2f}] |".format(*(-n for n in behind)),
        "costs {:.2f} less RR@10 [{:.2f}, {:.2f}] than IDF's choice |".format(*kept),
        "RR@10 {:.2f} with eight vectors, {:.2f} with one, {:.2f} with BM25 |".format(*passages),
        f"no decoder's mean R@1 (at most {max(decoders):.2f}) reaches a search for the query's word "
        f"sequences, {numbers(wu, 'retrieve', 'R@1', 'SEAL without a model')[0]:.2f} |",
        f"keeping the first quarter of tokens costs {-pruned[0]:.3f} |",
    ]
    which = [
        f"| {ended[1]['colbert']:.3f} and {ended[1]['dpr']:.3f} nDCG@10, for 13,680 and 784 bytes; ",
        f"784 bytes; BM25 {ended[1]['bm25']:.3f} |",
        f"{after[0]['colbert']:.3f} nDCG@10; one vector {after[0]['dpr']:.3f}, BM25 {after[0]['bm25']:.3f}",
        f"{after[2]['bm25']:.3f} in .1 ms; ColBERT, {after[2]['colbert']:.3f}, does",
        f"one vector, {after[2]['dpr']:.3f}, does",
        f"in 6 kB, by row: {ended[1]['me_bert']:.3f}, {after[0]['me_bert']:.3f}, "
        f"{after[1]['me_bert']:.3f} and {after[2]['me_bert']:.3f}",
        f"{dsi[0]:.3f} nDCG@10 over all of Debian |",
        f"ColBERT has {debian['colbert'][0]:.3f} on Debian and one vector {debian['dpr'][0]:.3f}",
        f"of BM25 is {after[1]['colbert'] - after[1]['bm25']:.3f} lower on the first",
        f"vector {after[2]['colbert'] - after[2]['dpr']:.3f} on the second",
    ]
    for page, sentences in {"README.md": readme, "experiments/which_paradigm.md": which}.items():
        text = " ".join((ROOT / page).read_text("utf-8").split())
        assert not [sentence for sentence in sentences if re.sub(r"\b0\.", ".", sentence) not in text], page


def test_every_hop_names_its_function():
    table = (ROOT / "paradigms" / "README.md").read_text("utf-8")
    hops = re.findall(r"^\| .* \| (`\w.*) \| (`paradigms/.*) \|$", table, re.MULTILINE)
    assert len(hops) > 10
    for functions, files in (map(re.compile("`(.*?)`").findall, hop) for hop in hops):
        sources = [(ROOT / file).read_text("utf-8") for file in files]
        for name in functions:
            called = name.rpartition(".")[2]
            assert any(re.search(rf"(def|class) {called}\b", source) for source in sources), name


def test_every_script_has_a_row():
    table = (ROOT / "experiments" / "README.md").read_text("utf-8")
    scripts = [*ROOT.glob("experiments/*.py"), *ROOT.glob("experiments/[be]*/*.py")]
    assert not [name for file in scripts if (name := str(file.relative_to(ROOT))) not in table]
