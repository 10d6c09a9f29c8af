"""What holds in every file: sizes, imports, calls, sentences, reasons.

`tidy_baseline.json`: what is over a limit, by how much. It may only shrink.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("tidy")  # one process parses every file, once
ROOT = Path(__file__).parent.parent
FILE_LINES_MAX, FUNCTION_LINES_MAX, IMPORTS_MAX = 450, 60, 20
SLEEP_S_MAX = 0.01  # below integration: long enough for a turn of a polling loop
GROWN = (
    "Split by idea, not by size: a file of 450 lines is better than a tower of classes. "
    "What shrank belongs in tests/tidy_baseline.json, too"
)
PURE = re.compile(r"/(core|codec|controller|image|checkers)/")
GENERATED = re.compile(r"wire/codec/messages/")  # its generator is held to the limits instead
BELOW_INTEGRATION = re.compile(r"^tests/(unit|property|golden|paper)/")
JUMPING_TIME = re.compile(
    r"jumping_time|metadata_quorum\.drivers import|SimulatedLoop"
)  # it sleeps no real time
NOQA = re.compile(r"# noqa(?!: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \S)")
SECTION = re.compile(r"^\s*# ?(?!--- \S.* ---$)[-=]{2,}")
IMPURE_CALLS = {"open", "print", "input", "hash", "id"}  # they need no import to be reached


def files(root: Path, *patterns: str) -> Iterator[tuple[str, str]]:
    """Yield (name below `root`, text) of each, without the generated ones."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            if not GENERATED.search(name):
                yield name, path.read_text()


@dataclass
class Source:
    """What the tests below ask of a file. Trees that are kept are slow to collect."""

    imports: set[str]  # modules of quorumlog that the module names
    has_docstring: bool
    function_lines: dict[str, int] = field(default_factory=dict)  # of equal names: the longest
    impure_calls: list[str] = field(default_factory=list)
    sleeps: list[tuple[int, float]] = field(default_factory=list)  # line, seconds


@cache
def parsed(text: str) -> Source:
    tree = ast.parse(text)
    imports = {module for node in tree.body for module in imported(node)}
    source = Source(imports, ast.get_docstring(tree) is not None)
    lines = source.function_lines
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            lines[node.name] = max(length, lines.get(node.name, 0))
        elif isinstance(node, ast.Call):
            match node:
                case ast.Call(func=ast.Name(id=called)) if called in IMPURE_CALLS:
                    source.impure_calls.append(called)
                case ast.Call(
                    func=ast.Name(id="sleep") | ast.Attribute(attr="sleep"),
                    args=[ast.Constant(value=float() | int() as seconds)],
                ):
                    source.sleeps.append((node.lineno, seconds))
                case _:
                    pass
    return source


def oversized(root: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, text in files(root, "quorumlog/**/*.py", "tests/**/*.py"):
        source = parsed(text)
        sizes[name] = len(text.splitlines()) - FILE_LINES_MAX
        if name.startswith("quorumlog/"):
            sizes[f"{name}: modules of ours"] = len(source.imports) - IMPORTS_MAX
        for function, lines in source.function_lines.items():
            sizes[f"{name}::{function}"] = lines - FUNCTION_LINES_MAX
    return {name: excess for name, excess in sizes.items() if excess > 0}


def imported(statement: ast.stmt) -> list[str]:
    """The modules of quorumlog that this statement of a module names."""
    match statement:
        case ast.ImportFrom(module=str(module)) if module.startswith("quorumlog"):
            return [module]
        case ast.Import(names=names):
            return [one.name for one in names if one.name.startswith("quorumlog")]
        case _:
            return []


def impure_calls(root: Path) -> list[str]:
    return [
        f"{name}: {called}()"
        for name, text in files(root, "quorumlog/**/*.py")
        if PURE.search(name)
        for called in parsed(text).impure_calls
    ]


def long_sleeps(root: Path) -> list[str]:
    """Sleeps of a fixed time below integration. `tests.support.waiting` has what to use instead."""
    return [
        f"{name}:{line}: sleep({seconds})"
        for name, text in files(root, "tests/**/*.py")
        if BELOW_INTEGRATION.search(name) and not JUMPING_TIME.search(text)
        for line, seconds in parsed(text).sleeps
        if seconds > SLEEP_S_MAX
    ]


def without_first_sentence(root: Path) -> list[str]:
    return [name for name, text in files(root, "tests/**/*.py") if not parsed(text).has_docstring]


def lines_of_another_form(root: Path) -> list[str]:
    """Lines that are nearly, but not quite, `# noqa: CODES - reason` or `# --- section ---`."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in files(root, "quorumlog/**/*.py", "tests/**/*.py", "tools/*.py")
        for number, line in enumerate(text.splitlines(), 1)
        if name != "tests/test_tidy.py" and (NOQA.search(line) or SECTION.search(line))
    ]


def test_nothing_grows_and_the_baseline_follows_what_shrinks(
    request: pytest.FixtureRequest,
) -> None:
    baseline, sizes = ROOT / "tests/tidy_baseline.json", oversized(ROOT)
    if request.config.getoption("--rewrite"):
        baseline.write_text(json.dumps(sizes, indent=2) + "\n")
    assert sizes == json.loads(baseline.read_text()), GROWN


@pytest.mark.parametrize(
    "faults", [impure_calls, long_sleeps, without_first_sentence, lines_of_another_form]
)
def test_nothing_is_untidy(faults: Callable[[Path], list[str]]) -> None:
    assert faults(ROOT) == []


def test_what_is_planted_is_seen(tmp_path: Path) -> None:
    planted, test = tmp_path / "quorumlog/core/planted.py", tmp_path / "tests/unit/test_planted.py"
    planted.parent.mkdir(parents=True)
    test.parent.mkdir(parents=True)
    imports = "".join(f"import quorumlog.m{number}\n" for number in range(IMPORTS_MAX + 2))
    planted.write_text(f"{imports}def long():\n" + "    print(1)\n" * FILE_LINES_MAX)
    test.write_text("sleep(0.01)\nasyncio.sleep(0.02)  # noqa: X100\n# --- a ----\n# --- b ---\n")
    assert oversized(tmp_path) == {
        "quorumlog/core/planted.py": 23,
        "quorumlog/core/planted.py: modules of ours": 2,
        "quorumlog/core/planted.py::long": FILE_LINES_MAX + 1 - FUNCTION_LINES_MAX,
    }
    assert {*impure_calls(tmp_path)} == {"quorumlog/core/planted.py: print()"}
    assert long_sleeps(tmp_path) == ["tests/unit/test_planted.py:2: sleep(0.02)"]
    assert without_first_sentence(tmp_path) == ["tests/unit/test_planted.py"]
    assert [line.split(":")[1] for line in lines_of_another_form(tmp_path)] == ["2", "3"]
