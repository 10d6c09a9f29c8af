"""What examples/ shows works as it stands."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quorumlog.chaos.checking.spark.java import find_java, make_java_home
from tests.support.added_parts import install_project
from tests.support.testing.plugin import run_pytest

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "examples"
PATTERNS = [
    "consumers", "dead_letters", "deduplication", "outbox_inbox", "table", "word_count"
]  # fmt: skip


def output_of(name: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kill_a_leader() -> None:
    assert "200 of 200 records read, in order" in output_of("kill_a_leader.py")


def test_verify_history() -> None:
    assert output_of("verify_history.py").splitlines() == [
        "valid: True, anomalies: []",
        "valid: False, anomalies: ['lost-write', 'log-end-regression', 'unseen']",
    ]


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "kill_a_leader.py",
        "verify_history.py",
    }
    projects = {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")}
    assert projects == {*PATTERNS, "spark_pipeline", "own_parts", "pytest_project"}


def results_of(directory: Path, *projects: str, timeout_s: float) -> dict[str, str]:
    """Run copies of projects by one pytest, on one cluster; return each test's outcome."""
    for name in projects:
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(EXAMPLES / name, directory / name, ignore=ignored)
    settings = ["-c", f"{projects[0]}/pyproject.toml", "--rootdir=.", "-p", "no:cacheprovider"]
    done = run_pytest(directory, *settings, "--junitxml=out.xml", *projects, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = ElementTree.parse(directory / "out.xml").iter("testcase")
    skipped = {case.get("name", ""): case.find("skipped") for case in cases}
    return {
        name: "passed" if reason is None else reason.get("message", "")
        for name, reason in skipped.items()
    }


@pytest.mark.timeout(600)  # some 200 crashes, each of a process of its own
def test_each_pattern_survives_its_crashes_and_each_mistake_is_found(tmp_path: Path) -> None:
    results = results_of(tmp_path, *PATTERNS, timeout_s=580)
    assert {*results.values()} == {"passed"}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_the_pipeline_on_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, pid_file = tmp_path / "jvm.log", tmp_path / "jvm.pid"
    java_home = make_java_home(tmp_path / "java", find_java(), log=log, pid_file=pid_file)
    monkeypatch.setenv("JAVA_HOME", str(java_home))
    results = results_of(tmp_path, "spark_pipeline", timeout_s=580)
    connector = results.pop("test_each_order_is_revenue_once[kafka]")
    assert {*results.values()} == {"passed"}
    if connector != "passed":
        pytest.skip(connector)


def patterns_in(project: Path) -> set[str]:
    """Return the texts in the tests of a project that may be patterns of messages."""
    trees = [ast.parse(path.read_text()) for path in project.glob("test_*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and len(text) > 8 and is_pattern(text)}


def is_pattern(text: str) -> bool:
    """Return False for a text that is no regular expression, such as SQL with `(?)`."""
    try:
        re.compile(text)
    except re.error:
        return False
    return True


def test_the_page_lists_the_mistakes_that_the_examples_plant() -> None:
    """Each message of the table is one that a test of the example requires."""
    page = (EXAMPLES.parent / "docs/examples.md").read_text()
    rows = re.findall(r"^\| (\w+) \| .* \| `([^`]+)` \|$", page, re.MULTILINE)
    required = {name: patterns_in(EXAMPLES / name) for name in (*PATTERNS, "spark_pipeline")}
    assert {name for name, _ in rows} == required.keys()
    for name, message in rows:
        assert any(re.search(pattern, message) for pattern in required[name]), message


def test_parts_of_another_package(tmp_path: Path) -> None:
    project = tmp_path / "own_parts"
    shutil.copytree(EXAMPLES / "own_parts", project)
    install_project(tmp_path / "site", project)
    paths = [tmp_path / "site", project, EXAMPLES.parent]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_the_tutorial_shows_the_parts_as_they_are() -> None:
    page = (EXAMPLES.parent / "docs/tutorial/7-parts-of-your-own.md").read_text()
    files = [*(EXAMPLES / "own_parts").rglob("*.py"), EXAMPLES / "own_parts/pyproject.toml"]
    sources = [path.read_text() for path in files]
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        assert any(block in source for source in sources), block
