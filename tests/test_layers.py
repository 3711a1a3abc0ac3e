"""Imports run one way: what each part of the project may import of the others, read from the source."""

import ast
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paradigms.rooms import ROOMS, Entry

ROOT = Path(__file__).parents[1]
PARADIGM_FILES = {"dpr", "me_bert", "colbert", "coil", "aligner", "xtr", "splade", "bge_m3"}
# Lowest first: a part imports itself and lower layers. The core ends where `ROOMS` begins.
CORE: list[set[str]] = [
    {"rooms", "io"},
    {"core", "explanation", "saved"},
    {"relax", "muvera", "statistics", "lemur", "data"},
    {"align"},
    {"impute"},
    {"recipe"},
    {"scoring", "encoder"},
    {"identity"},
    {"trainable"},
    {"model"},
    PARADIGM_FILES | {"baselines"},
    {"registry"},
    {"loading"},
    {"store"},
    {"find"},
    {"retrieve"},
    {"evaluate"},
    {"train"},
]
# Each can be deleted, and what lies above it.
ABOVE: list[set[str]] = [
    {"baselines.cross_attention"},
    {"generative"},
    {"train.generative"},
    {"saving"},
    {"view"},
    {"engines", "serve"},
    {"cli"},
    {"__main__"},
]
LAYERS = CORE + ABOVE
# Where the library and its theory meet: each is imported for its command alone.
MEETING = ("paradigms/cli/dimensions.py", "paradigms/cli/oracle.py")
OUTSIDE = {"torch", "transformers", "accelerate"}


def modules(folder: str) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


def nodes(file: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports of a file, those inside functions too, but not those that only type checkers read."""
    left: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            left += ast.iter_child_nodes(node)


def imports(file: Path) -> set[str]:
    names = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part(name: str) -> str:
    """The entry of `LAYERS` for a module: 'train.generative', which has a layer of its own, else 'train'."""
    first, *rest = name.split(".")
    longer = f"{first}.{rest[0]}" if rest else first
    return longer if any(longer in names for names in LAYERS) else first


def layer(name: str) -> int:
    numbers = [n for n, names in enumerate(LAYERS) if name in names]
    assert numbers, f"paradigms/{name} has no place in LAYERS"
    return numbers[0]


@pytest.mark.parametrize("file", modules("paradigms"), ids=lambda f: str(f.relative_to(ROOT)))
def test_paradigms_imports_downwards(file):
    own = part(".".join(file.relative_to(ROOT / "paradigms").with_suffix("").parts))
    above = {"experiments", "papers", "studies", "tests"} | (
        {"theory"} if str(file.relative_to(ROOT)) not in MEETING else set()
    )
    for name in imports(file):
        top = name.split(".")[0]
        assert top not in above, f"{file} imports {name}"
        assert own.startswith("train") or top != "accelerate", f"{file} imports accelerate outside train/"
        if top != "paradigms" or own == "__init__":
            continue
        other = part(name.removeprefix("paradigms."))
        assert other == own or layer(other) < layer(own), f"{file} imports {name}: not below it"


def test_the_map_of_the_package_shows_the_core_below_and_the_rooms_above():
    text = (ROOT / "paradigms" / "README.md").read_text(encoding="utf-8")
    core, above = text.split("## Folders")[1].split("The rooms above it")
    for room in {name.split(".")[0] for name in set.union(*ABOVE)} - {"train", "__main__"}:
        assert f"paradigms/{room}/ " in above
    for name in ("encoder", "scoring", "store", "find", "retrieve", "evaluate", "train", "data"):
        assert f"paradigms/{name}/" in core


@pytest.mark.parametrize("file", modules("theory"), ids=lambda f: str(f.relative_to(ROOT)))
def test_theory_knows_nothing_of_models(file):
    for name in imports(file):
        assert name.split(".")[0] not in {"paradigms", "experiments", "papers", "studies", *OUTSIDE}, (
            f"{file} imports {name}"
        )


def test_core_imports_torch_and_jaxtyping_only():
    allowed = {"__future__", "collections", "dataclasses", "functools", "typing", "torch", "jaxtyping"}
    names = imports(ROOT / "paradigms" / "core.py") - {"paradigms.rooms.Entry"}  # by a method that draws
    assert {name.split(".")[0] for name in names} <= allowed


def test_tokenizers_are_called_in_one_place():
    """Under its lock, as each call sets the tokenizer's truncation and padding."""
    calls = re.compile(r"(?<!\w)(?<!def )tokenizer\([^)]")
    files = {file.name for file in modules("paradigms") if calls.search(file.read_text(encoding="utf-8"))}
    assert files == {"tokenizing.py"}


def test_losses_see_no_encoder():
    assert not any("encode" in name for name in imports(ROOT / "paradigms" / "train" / "losses.py"))


def test_no_script_shadows_a_package():
    """Launching a script puts experiments/ first on the path: its name would hide a top-level package's."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in pyproject["dependencies"]}
    taken = required | sys.stdlib_module_names | {"paradigms", "theory", "tests", "evaluate", "faiss"}
    for script in (ROOT / "experiments").glob("*.py"):
        assert script.stem not in taken, f"{script} hides the package {script.stem}"


def test_registries_are_filled_where_they_are_defined():
    """In the table's own file, in registry.py, or beside the class or function that the entry names."""
    tables = "ALIGNMENTS|NORMALISERS|IMPUTATIONS|ENCODERS|PARADIGMS|GENERATIVE|RERANKERS|INDEXES|FORMATS"
    entry = re.compile(rf"^( *)({tables})(?:\[[^]]*\] = (\w*)| \|= |\.update\(|\.setdefault\()", re.MULTILINE)
    for file in modules("paradigms"):
        text = file.read_text(encoding="utf-8")
        for match in entry.finditer(text):
            own = re.search(rf"^{match[2]}(: .*)? = ", text, re.MULTILINE) or file.name == "registry.py"
            beside = match[3] and re.search(rf"^(class|def) {match[3]}\b", text, re.MULTILINE)
            assert own or (beside and not match[1]), f"{file} fills {match[2]}: {match[0]}"


def test_no_import_runs_in_a_circle():
    """Imports inside functions count; scripts name their parts from experiments/ on."""
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for folder, root in (("paradigms", ROOT), ("theory", ROOT), ("experiments", ROOT / "experiments"))
        for file in modules(folder)
    }
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, file in files.items():
        for name in imports(file):
            imported = name if name in files else name.rpartition(".")[0]
            if imported in files and not f"{module}.".startswith(f"{imported}."):
                graph[module].add(imported)
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_only_the_table_of_rooms_imports_by_name():
    """Entries of the table exist above the core; no other file imports modules of the core by a string."""
    by_string = re.compile(r"import_module\((?!\"(bm25s|ir_datasets)\")|__import__")
    users = {str(f.relative_to(ROOT)) for f in modules("paradigms") if by_string.search(f.read_text())}
    assert users <= {
        "paradigms/__init__.py",  # names of the table and of the registry
        "paradigms/rooms.py",
        "paradigms/cli/arguments.py",  # its own commands
        "paradigms/io/plugins.py",  # users' files
    }
    for name, module in ROOMS.items():
        assert part(module) in set.union(*ABOVE, {"registry"})
        assert Entry(name).__wrapped__


@pytest.mark.parametrize(
    ("call", "door"),
    {
        r"\bConsole\(": "paradigms/io/terminal.py",  # prints text of others as it is
        r"\.from_pretrained\(.*trust": "paradigms/encoder/backbone.py",  # runs no code of a checkpoint
        r"\bAuto\w+\.from_": "paradigms/encoder/backbone.py",
        r"\btorch\.load\(": "paradigms/saving/hub.py",  # of weights alone, on request
        r"\bimport (pickle|dill|joblib|marshal)\b": "nowhere",
    }.items(),
)
def test_what_comes_from_strangers_has_one_door(call: str, door: str):
    files = [*modules("paradigms"), *modules("experiments")]
    results = {str(f.relative_to(ROOT)) for f in files if re.search(call, f.read_text(encoding="utf-8"))}
    assert results <= {door}


# Where a tolerance may stand, and why, beside tests/theory: numpy in float64, against digits of publications.
TOLERATED = {
    "tests/near.py": "its own",
    "tests/test_layers.py": "their names",
    "tests/test_gpu.py": "GPUs round products to TF32",
}


def test_tolerances_for_rounding_are_those_of_near():
    """Comparisons use float64 or a tolerance from the length of the sum, both from tests/near.py."""
    named = re.compile(r"allclose|assert_close|assert_almost_equal|\b[ar]tol\b|assert_series_equal|isclose")
    files = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in modules("tests")}
    results = {file for file, text in files.items() if named.search(text)} - TOLERATED.keys()
    results = {file for file in results if not file.startswith("tests/theory/")}
    assert not results, f"compare with assert_same or assert_within_rounding of tests/near.py: {results}"
