"""What is imported when: `--help` comes before slow imports, and `import paradigms` imports only torch."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

from paradigms import PARADIGMS
from paradigms.cli import arguments
from paradigms.find import INDEXES
from paradigms.saved import SAVE_LAYOUTS
from paradigms.saving import FORMATS

ROOT = Path(__file__).parents[1]
SLOW = {"torch", "transformers", "peft", "faiss", "datasets", "accelerate", "numba", "scipy", "matplotlib"}
SLOW |= {"wandb", "bm25s", "ir_measures", "sentencepiece", "rapidfuzz", "pandas"}
LAUNCHED = ("*.py", "benchmarks/*.py", "examples/*.py")
SCRIPTS = [
    str(file.relative_to(ROOT))
    for folder in LAUNCHED
    for file in sorted((ROOT / "experiments").glob(folder))
    if re.search(r'^(if __name__ == "__main__"|launch\(__name__)', file.read_text(encoding="utf-8"), re.M)
]
COMMANDS = ["index", "search", "rerank", "explain", "export", "compare", "dimensions"]


# Forks itself, for each line of its input, with what no help text can do without imported; each fork runs
# that command and prints the slow modules that it brought, and then what it said.
SERVER = """
import contextlib, io, json, os, runpy, sys
sys.path[:0] = ["experiments", "experiments/benchmarks"]
import jsonargparse, yaml
for line in sys.stdin:
    (kind, what, *arguments), (read, write) = json.loads(line), os.pipe()
    if os.fork() == 0:
        said, sys.argv = io.StringIO(), [what, *arguments]
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            if kind == "code":
                exec(what)
            else:
                {"path": runpy.run_path, "module": runpy.run_module}[kind](what, run_name="__main__")
        brought = sorted({name.partition(".")[0] for name in sys.modules} & set(SLOW))
        with open(write, "w") as pipe:
            json.dump([said.getvalue(), brought], pipe)
        os._exit(0)
    os.close(write)
    print(open(read).read(), flush=True)
    os.wait()
"""


def answers(*commands: tuple[str, ...]) -> list[tuple[str, set[str]]]:
    """Map each command to its output and to the modules of `SLOW` that it imports."""
    done = subprocess.run(
        [sys.executable, "-c", f"SLOW = {sorted(SLOW)}\n{SERVER}"],
        input="".join(json.dumps(command) + "\n" for command in commands),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [(said, set(brought)) for said, brought in map(json.loads, done.stdout.splitlines())]


def test_help_imports_nothing_slow():
    scripts = [("path", script, "--help") for script in SCRIPTS]
    commands = [("module", "paradigms", *of, "--help") for of in ([], *([name] for name in COMMANDS))]
    shown = answers(*scripts, *commands)
    assert len(scripts) > 20
    assert [command for command, (_, slow) in zip(scripts + commands, shown, strict=True) if slow] == []
    assert all(said.strip() for said, _ in shown)
    assert all(re.match(r"usage: (\S*python\S* -m )?paradigms ", said) for said, _ in shown[len(scripts) :])


def test_the_package_imports_torch_when_it_is_used():
    commands = ("import paradigms, paradigms.io.command_line, paradigms.data", "from paradigms import load")
    assert [slow for _, slow in answers(*(("code", code) for code in commands))] == [set(), {"torch"}]


def test_names_written_out_for_help_are_all_there_are():
    assert tuple(INDEXES) == arguments.INDEX_KINDS
    assert tuple(SAVE_LAYOUTS) == arguments.LAYOUT_NAMES
    assert tuple(FORMATS) == arguments.FORMAT_NAMES
    compare, serving = map(importlib.import_module, ("compare", "serving_costs"))
    without = "splade", "bge_m3"  # whose heads the default encoder lacks
    named = [name for name in PARADIGMS if name not in without]
    assert compare.Settings().systems == serving.Settings().paradigms == named


def test_no_module_of_the_current_folder_is_imported(tmp_path):
    """A downloaded folder may hold a numpy.py."""
    for name in ("numpy", "torch", "rich", "argparse"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "notes.txt").write_text("a bird over the sea")
    for command in ("search nowhere bird", "index notes.txt --model nowhere"):
        called = [sys.executable, "-m", "paradigms", *command.split()]
        said = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True).stderr
        assert "nowhere" in said
        assert "Traceback" not in said
    assert not (tmp_path / "ran").exists()


ONE_VECTOR = """
import sys
from paradigms import PARADIGMS
from paradigms.retrieve import Indexed
model = PARADIGMS["dpr"]("offline")
texts = ["one", "another text", "the third"]
index = Indexed.build(model, dict(zip("abc", texts)))
assert len(index.search({"q": "another text"}, 2)["q"]) == 2
assert index.rerank({"q": "another text"}, {"q": {"a": 0.0, "b": 0.0}})["q"]
assert "numba" not in sys.modules
"""


def test_one_vector_a_document_loads_no_kernel() -> None:
    subprocess.run([sys.executable, "-c", ONE_VECTOR], check=True)
