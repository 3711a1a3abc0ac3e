"""Print how dense, large and entangled the code is: `python -m tests.density [CHECKOUT]`."""

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOMS = ("paradigms", "theory", "experiments", "tests")
STARTS = ("paradigms/registry", "paradigms/train/loop", "paradigms/retrieve")
Graph = dict[Path, set[Path]]


def unpacks(kind: type[ast.AST]) -> Callable[[ast.AST], bool]:
    """Find assignments such as `a, b = …` whose right side is of this kind, except swaps."""

    def matches(node: ast.AST) -> bool:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            return False
        right = {ast.unparse(part) for part in ast.walk(node.value)}
        swap = {ast.unparse(part) for part in node.targets[0].elts} <= right
        return isinstance(node.value, kind) and not swap

    return matches


DENSITIES: dict[str, Callable[[ast.AST], bool]] = {
    "a, b = x, y": unpacks(ast.Tuple),
    "unpacked": unpacks(ast.GeneratorExp),
    "Any": lambda node: isinstance(node, ast.Name) and node.id == "Any",
    "**more": lambda node: (
        isinstance(node, ast.Call)
        and any(word.arg is None and isinstance(word.value, ast.Name) for word in node.keywords)
    ),
}


def flags(trees: Iterable[tuple[Path, ast.Module]]) -> tuple[int, int, int]:
    """Return the numbers of scripts, of their flags, and of flags declared, inherited ones once."""
    classes: dict[str, tuple[list[str], list[str]]] = {}
    for file, tree in trees:
        for part in tree.body:
            if isinstance(part, ast.ClassDef):
                names = [ast.unparse(s.target) for s in part.body if isinstance(s, ast.AnnAssign)]
                name = f"{file}:Settings" if part.name == "Settings" else part.name
                classes[name] = names, [ast.unparse(base) for base in part.bases]

    def inherited(name: str) -> set[tuple[str, str]]:
        names, bases = classes.get(name, ([], []))
        return {(name, flag) for flag in names}.union(*map(inherited, bases))

    scripts = [inherited(name) for name in classes if name.endswith(":Settings")]
    shown = sum(len({flag for _, flag in pairs}) for pairs in scripts)
    return len(scripts), shown, len(set[tuple[str, str]]().union(*scripts))


def imports(trees: dict[Path, ast.Module]) -> Graph:
    """Map each file to the files that it imports, inside functions too, but not if only for types."""
    files = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in trees}
    graph: Graph = {}
    for file, tree in trees.items():
        typed = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
        skipped = {part for node in typed for part in ast.walk(node)}
        graph[file] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node not in skipped:
                parts = {f"{node.module}.{alias.name}" for alias in node.names} & files.keys()
                graph[file] |= {files[name] for name in parts or {str(node.module)} & files.keys()}
    return graph


def closure(graph: Graph, starts: Iterable[Path]) -> set[Path]:
    """Return the files that importing these files brings, themselves included."""
    brought: set[Path] = set()
    new = set(starts)
    while new:
        brought |= new
        new = {part for file in new for part in graph[file]} - brought
    return brought


def row(name: str, *values: float | str) -> None:
    """Print a row of a table."""
    cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    print(f"{name:<24}" + "".join(f"{cell:>12}" for cell in cells))


def main(root: Path) -> None:
    """Print the tables of a checkout."""
    files = [file for room in ROOMS for file in sorted((root / room).rglob("*.py"))]
    texts = {file.relative_to(root): file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    sizes = {file: text.count("\n") for file, text in texts.items()}
    rooms: dict[str, int] = defaultdict(int)
    row("per 1,000 lines", *DENSITIES)
    for room in ROOMS:
        within = [file for file in trees if file.parts[0] == room]
        rooms[room] = sum(sizes[file] for file in within)
        for file in within:
            rooms[f"{room}/{file.parts[1]}" if len(file.parts) > 2 else f"{room}/*.py"] += sizes[file]
        nodes = [node for file in within for node in ast.walk(trees[file])]
        row(room, *(round(1000 * sum(map(counts, nodes)) / rooms[room], 1) for counts in DENSITIES.values()))
    print()
    row("lines", "")
    for room, size in rooms.items():
        row(room, size)
    print()
    row("flags", "scripts", "flags", "declared")
    row("", *flags((file, tree) for file, tree in trees.items() if file.parts[0] == "experiments"))
    print()
    row("imports of", "files", "lines")
    graph = imports({file: tree for file, tree in trees.items() if file.parts[0] == "paradigms"})
    for start in STARTS:
        brought = closure(graph, graph.keys() & {Path(f"{start}.py"), Path(f"{start}/__init__.py")})
        row(start, len(brought), sum(sizes[file] for file in brought))
    row("files in circles", sum(file in closure(graph, graph[file]) for file in graph))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
