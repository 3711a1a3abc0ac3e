"""The pages name what is there: links, paths, functions, imports and flags."""

import ast
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from paradigms.cli.arguments import parser

ROOT = Path(__file__).parents[1]
ROOMS = [f"{room}/**/*.md" for room in ("paradigms", "theory", "experiments")]
PAGES = [ROOT / "README.md", *(page for room in ROOMS for page in sorted(ROOT.glob(room)))]
SETTINGS = "\n".join(file.read_text("utf-8") for file in (ROOT / "experiments/studies").glob("*.py"))


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request):
    return request.param


def commands(page: Path) -> list[str]:
    """The commands of a page's blocks, each on one line and without what runs them."""
    lines = page.read_text("utf-8").replace("\\\n", " ").splitlines()
    found = (
        re.search(r"^    .*?(experiments/\S+\.py|python -m paradigms (?=\w))(.*)", line) for line in lines
    )
    return [match[1] + match[2].partition("   #")[0] for match in found if match]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s\"]*)#?([^)\s\"]*)\)", page.read_text("utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def test_paths_exist(page):
    named = re.findall(
        r"(?<![\w/.-])(?:paradigms|theory|experiments|tests)/[\w./-]*\w", page.read_text("utf-8")
    )
    assert not [name for name in named if not (ROOT / name).exists()]


def test_imports_are_there(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                spec = find_spec(str(node.module).partition(".")[0]) and find_spec(str(node.module))
                assert spec is not None, node.module
                source = Path(str(spec.origin)).read_text("utf-8")
                assert not [a.name for a in node.names if not re.search(rf"\b{a.name}\b", source)]


def test_flags_are_settings(page):
    for command in commands(page):
        script, _, arguments = command.partition(" ")
        if script == "python":
            assert not parser().parse_known_args(shlex.split(arguments)[2:])[1], command
            continue
        source = (ROOT / script).read_text("utf-8") + SETTINGS
        for flag in re.findall(r" --(\w+)", arguments):
            own = flag in ("config", "plugin") or re.search(rf"^    {flag}: ", source, re.MULTILINE)
            assert own, command


def test_every_hop_names_its_function():
    table = (ROOT / "paradigms" / "README.md").read_text("utf-8")
    hops = re.findall(r"^\| .* \| (`\w.*) \| (`paradigms/.*) \|$", table, re.MULTILINE)
    assert len(hops) > 10
    for functions, files in (map(re.compile("`(.*?)`").findall, hop) for hop in hops):
        sources = [(ROOT / file).read_text("utf-8") for file in files]
        for name in functions:
            called = name.rpartition(".")[2]
            assert any(re.search(rf"def {called}\b", source) for source in sources), name


def test_every_script_has_a_row():
    table = (ROOT / "experiments" / "README.md").read_text("utf-8")
    scripts = [*ROOT.glob("experiments/*.py"), *ROOT.glob("experiments/[be]*/*.py")]
    assert not [name for file in scripts if (name := str(file.relative_to(ROOT))) not in table]
