"""Sizes and forbidden calls. tidy_baseline.json: what is over a limit, by how many lines."""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX, FUNCTION_LINES_MAX = 400, 60
PURE = re.compile(r"/(core|codec|controller|image|checkers)/")
GENERATED = re.compile(r"wire/codec/messages/")  # its generator is held to the limits instead
IMPURE_CALLS = {"open", "print", "input", "hash", "id"}  # they need no import to be reached


def oversized(root: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for path in sorted([*root.glob("quorumlog/**/*.py"), *root.glob("tests/**/*.py")]):
        name, text = path.relative_to(root).as_posix(), path.read_text()
        if GENERATED.search(name):
            continue
        sizes[name] = len(text.splitlines()) - FILE_LINES_MAX
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                key, excess = f"{name}::{node.name}", lines - FUNCTION_LINES_MAX
                sizes[key] = max(excess, sizes.get(key, excess))
    return {name: excess for name, excess in sizes.items() if excess > 0}


def impure_calls(root: Path) -> list[str]:
    found = []
    for path in sorted(root.glob("quorumlog/**/*.py")):
        if not PURE.search(path.relative_to(root).as_posix()):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                    found.append(f"{path.name}: {name}()")
    return found


def test_nothing_grows_and_the_baseline_follows_what_shrinks() -> None:
    assert oversized(ROOT) == json.loads((ROOT / "tests/tidy_baseline.json").read_text())


def test_pure_modules_call_nothing_impure() -> None:
    assert impure_calls(ROOT) == []


def test_what_is_planted_is_seen(tmp_path: Path) -> None:
    planted = tmp_path / "quorumlog/core/planted.py"
    planted.parent.mkdir(parents=True)
    planted.write_text("def long():\n" + "    print(1)\n" * 400)
    assert oversized(tmp_path) == {
        "quorumlog/core/planted.py": 1,
        "quorumlog/core/planted.py::long": 341,
    }
    assert {*impure_calls(tmp_path)} == {"planted.py: print()"}
