"""Packaging: examples run, the wheel works, and files agree with each other."""

import doctest
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
EXAMPLES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for folder in ("paradigms", "theory")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if re.search(r"^ *>>> ", file.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_in_docstrings(module: str):
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
    assert results.attempted > 0


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert f"## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_names_tests_that_exist():
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "SUITE")}
    command = ["make", "-n", "test-cpus"]
    built = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=True)
    named = set(re.findall(r"tests/\S+\.py", built.stdout))
    assert len(named) > 9
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_a_wheel_holds_all_that_the_command_needs(tmp_path: Path):
    """Built from a copy, unpacked, and its command run away from the repository."""
    pytest.importorskip("build.__main__", reason="needs build: pip install build")
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools: pip install setuptools")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "paradigms", "theory"):
        (source / name).symlink_to(ROOT / name)
    building = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"]
    built = subprocess.run([*building, "-o", str(tmp_path), str(source)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        files.extractall(tmp_path / "installed")
    [entry] = (tmp_path / "installed").glob("*/entry_points.txt")
    assert "paradigms = paradigms.cli.arguments:main" in entry.read_text()
    sources = {
        str(file.relative_to(ROOT))
        for folder in ("paradigms", "theory")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".j2", ".html", ".js", ".css", ".typed")
    }
    assert sources <= names
    assert not [name for name in names if name.startswith(("experiments", "tests"))]
    command = "import sys; from paradigms.cli.arguments import main; sys.exit(main(['search', '--help']))"
    environment = {"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""}
    subprocess.run([sys.executable, "-c", command], cwd=tmp_path, env=environment, check=True)
