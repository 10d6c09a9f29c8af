"""Rules for every file: sizes, calls, sentences, reasons.

`tidy_baseline.json`: the excess over each limit. It may only shrink.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("tidy")  # one process parses every file, once
ROOT = Path(__file__).parent.parent
FILE_LINES_MAX, FUNCTION_LINES_MAX = 500, 60
SMALL_LINES = 40
SLEEP_S_MAX = 0.01  # below integration: long enough for a turn of a polling loop
GROWN = (
    "Split by idea, not by size: a file of 500 lines is better than a tower of classes. "
    "After a file shrank: pytest tests/test_tidy.py --rewrite"
)
PURE = re.compile(r"/(core|codec|controller|image|checkers)/")
GENERATED = re.compile(r"wire/codec/messages/")  # its generator is held to the limits instead
BELOW_INTEGRATION = re.compile(r"^tests/(unit|property|golden|paper)/")
JUMPING_TIME = re.compile(
    r"jumping_time|metadata_quorum\.drivers import|SimulatedLoop"
)  # it sleeps no real time
NOQA = re.compile(r"# noqa(?!: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \S)")
SECTION = re.compile(r"^\s*# ?(?!--- \S.* ---$)[-=]{2,}")
RIDDLE = re.compile(
    r"\b(what|tell(s|ing)?|told|hear(s|d|ing)?|know(s|n|ing)?|knew|say(s|ing)?|said"
    r"|ask(s|ed|ing)?|want(s|ed|ing)?)\b",
    re.IGNORECASE,
)
NAMES = re.compile(r"`[^`]*`|docs/\S*")  # code and files, which have words of their own
# A string, or a comment: a "#" in a string begins none.
STRING_OR_COMMENT = re.compile(
    r"""\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
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
    """The facts of a file that the tests below compare. Trees that are kept are slow to collect."""

    imports: set[str]  # modules of quorumlog, anywhere in the module
    has_docstring: bool
    has_behaviour: bool  # it defines a class or a function
    docstrings: list[str] = field(default_factory=list)  # also of attributes
    function_lines: dict[str, int] = field(default_factory=dict)  # of equal names: the longest


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement below a tree: `ast.walk` would visit the expressions, too."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, block, ()):
            if isinstance(node, ast.stmt):
                yield node
            yield from statements(node)


@cache
def parsed(text: str) -> Source:
    tree = ast.parse(text)
    kinds = {type(node) for node in tree.body}
    behaves = not kinds.isdisjoint({ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef})
    source = Source(set(), ast.get_docstring(tree) is not None, behaves)
    lines = source.function_lines
    for node in statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source.imports.update(imported(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            lines[node.name] = max(length, lines.get(node.name, 0))
        elif isinstance(node, ast.Expr):
            match node.value:
                case ast.Constant(value=str() as docstring):
                    source.docstrings.append(docstring)
                case _:
                    pass
    return source


def calls(text: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def oversized(root: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, text in files(root, "quorumlog/**/*.py", "tests/**/*.py"):
        source = parsed(text)
        sizes[name] = len(text.splitlines()) - FILE_LINES_MAX
        for function, lines in source.function_lines.items():
            sizes[f"{name}::{function}"] = lines - FUNCTION_LINES_MAX
    return {name: excess for name, excess in sizes.items() if excess > 0}


def imported(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules of quorumlog that this statement may name."""
    match statement:
        case ast.ImportFrom(module=str(module), names=names) if module.startswith("quorumlog"):
            return [module, *(f"{module}.{one.name}" for one in names)]
        case ast.Import(names=names):
            return [one.name for one in names if one.name.startswith("quorumlog")]
        case _:
            return []


def joinable(root: Path) -> list[str]:
    """Small files with behaviour that one file imports, of the same directory: one idea in two."""
    texts = dict(files(root, "quorumlog/**/*.py"))
    importers = Counter[str]()
    beside = set[str]()
    for importer, text in texts.items():
        for module in parsed(text).imports:
            name = module.replace(".", "/") + ".py"
            importers[name] += 1
            if name.rpartition("/")[0] == importer.rpartition("/")[0]:
                beside.add(name)
    return [
        name
        for name, text in texts.items()
        if text.count("\n") < SMALL_LINES
        and parsed(text).has_behaviour
        and importers[name] == 1
        and name in beside
    ]


@cache
def prose_of(text: str) -> list[str]:
    """The docstrings, those behind constants included, and the comments."""
    comments = [found["comment"] for found in STRING_OR_COMMENT.finditer(text)]
    return parsed(text).docstrings + [comment for comment in comments if comment]


def riddles(root: Path) -> dict[str, int]:
    """Words that hide the noun or the verb of a sentence: their number in each package.

    "what" hides a noun; tell, hear, know, say, ask and want hide the act of a program: it sends,
    receives, records, returns, requires.
    """
    counts = Counter[str]()
    for name, text in files(root, "quorumlog/**/*.py"):
        package = "/".join(name.split("/")[:2])
        for passage in prose_of(text):
            counts[package] += len(RIDDLE.findall(NAMES.sub("", passage)))
    return {package: count for package, count in sorted(counts.items()) if count}


def questions(root: Path) -> list[str]:
    """Docstrings and comments that begin with "What"."""
    return [
        f"{name}: {passage[:40]}"
        for name, text in files(root, "quorumlog/**/*.py")
        for passage in prose_of(text)
        if re.match(r"[#\s]*what\b", passage, re.IGNORECASE)
    ]


def impure_calls(root: Path) -> list[str]:
    return [
        f"{name}: {call.func.id}()"
        for name, text in files(root, "quorumlog/**/*.py")
        if PURE.search(name)
        for call in calls(text)
        if isinstance(call.func, ast.Name) and call.func.id in IMPURE_CALLS
    ]


def sleeps(text: str) -> Iterator[tuple[int, float]]:
    """Yield the line and the seconds of each sleep of a fixed time."""
    for call in calls(text):
        match call:
            case ast.Call(
                func=ast.Name(id="sleep") | ast.Attribute(attr="sleep"),
                args=[ast.Constant(value=float() | int() as seconds)],
            ):
                yield call.lineno, seconds
            case _:
                pass


def long_sleeps(root: Path) -> list[str]:
    """Sleeps of a fixed time below integration. `tests.support.waiting` has what to use instead."""
    return [
        f"{name}:{line}: sleep({seconds})"
        for name, text in files(root, "tests/**/*.py")
        if BELOW_INTEGRATION.search(name) and "sleep" in text and not JUMPING_TIME.search(text)
        for line, seconds in sleeps(text)
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
    path = ROOT / "tests/tidy_baseline.json"
    found = {"over": oversized(ROOT), "joinable": joinable(ROOT), "riddles": riddles(ROOT)}
    if request.config.getoption("--rewrite"):
        path.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(path.read_text()), GROWN


@pytest.mark.parametrize(
    "faults", [impure_calls, long_sleeps, without_first_sentence, lines_of_another_form, questions]
)
def test_nothing_is_untidy(faults: Callable[[Path], list[str]]) -> None:
    assert faults(ROOT) == []


def test_what_is_planted_is_seen(tmp_path: Path) -> None:
    planted, test = tmp_path / "quorumlog/core/planted.py", tmp_path / "tests/unit/test_planted.py"
    planted.parent.mkdir(parents=True)
    test.parent.mkdir(parents=True)
    planted.write_text("def long():\n" + "    print(1)\n" * FILE_LINES_MAX)
    small = planted.with_name("small.py")
    small.write_text('"""What one other file uses: it tells `what` it knows."""\ndef one(): ...\n')
    planted.with_name("user.py").write_text("from quorumlog.core.small import one  # asked for\n")
    planted.with_name("alone.py").write_text("def none(): ...\n")
    test.write_text("sleep(0.01)\nasyncio.sleep(0.02)  # noqa: X100\n# --- a ----\n# --- b ---\n")
    assert oversized(tmp_path) == {
        "quorumlog/core/planted.py": 1,
        "quorumlog/core/planted.py::long": FILE_LINES_MAX + 1 - FUNCTION_LINES_MAX,
    }
    assert joinable(tmp_path) == ["quorumlog/core/small.py"]
    assert riddles(tmp_path) == {"quorumlog/core": 4}
    assert [one.split(":")[0] for one in questions(tmp_path)] == ["quorumlog/core/small.py"]
    assert {*impure_calls(tmp_path)} == {"quorumlog/core/planted.py: print()"}
    assert long_sleeps(tmp_path) == ["tests/unit/test_planted.py:2: sleep(0.02)"]
    assert without_first_sentence(tmp_path) == ["tests/unit/test_planted.py"]
    assert [line.split(":")[1] for line in lines_of_another_form(tmp_path)] == ["2", "3"]
