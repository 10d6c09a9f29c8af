"""Commands and plugin where only the declared dependencies are installed: no extra is there."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from quorumlog.chaos.checkers.registry import CHECKERS
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.cli.output import EXIT_UNKNOWN
from tests.support.cli import every_help

ROOT = Path(__file__).parents[3]
BARE = ROOT / "tests" / "support" / "bare"
WITH_HISTORY = """
    import pytest

    @pytest.mark.chaos(duration="5s", seed=3)
    def test_real(): ...

    @pytest.mark.chaos(duration="5s", seed=3, simulated=True)
    def test_simulated(): ...

    def test_recorded(history): ...

    def test_other(): ...
"""


@cache
def environment(also: str) -> dict[str, str]:
    """Return the variables of a Python that finds the declared dependencies, and `also`."""
    path = os.pathsep.join([str(BARE), str(ROOT)])
    found = {**os.environ, "PYTHONPATH": path, "QUORUMLOG_ALSO": also}
    program = "import os; print(os.environ['QUORUMLOG_ABSENT'])"
    absent = subprocess.check_output([sys.executable, "-c", program], env=found, text=True)
    return {**found, "QUORUMLOG_ABSENT": absent}


def run_bare(
    *words: str, also: str = "", directory: Path = ROOT, **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run Python where it finds nothing but the declared dependencies, and `also`."""
    return subprocess.run(
        [sys.executable, *words],
        env={**environment(also), **more},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_but_the_declared_dependencies_is_found() -> None:
    program = "from importlib.util import find_spec as f; print([*map(bool, map(f, {}))])"
    names = ["quorumlog", "aiohttp", "multidict", "numpy", "pyarrow", "re2", "pyspark", "pytest"]
    found = run_bare("-c", program.format(names))
    assert found.stdout.strip() == str([True] * 3 + [False] * 5), found.stderr


def test_every_command_shows_its_help() -> None:
    shown = run_bare(every_help.__file__)
    assert shown.returncode == 0, shown.stderr
    commands = shown.stdout.splitlines()
    assert commands == [" ".join(words) for words in every_help.every_command()]
    assert {"chaos run", "simulate", "groups reset-offsets"} <= {*commands}


def test_the_simulators_of_cores_run() -> None:
    run = run_bare("-m", "quorumlog", "simulate", "--seeds", "1", "--duration", "2s")
    assert run.returncode == 0, run.stderr
    assert "no invariant broke" in run.stdout


def test_the_list_of_the_lab_names_the_models_and_what_they_lack() -> None:
    shown = run_bare("-m", "quorumlog", "chaos", "list", "--json")
    assert shown.returncode == 0, shown.stderr
    listed = json.loads(shown.stdout)
    assert listed["models"] == {name: checker.text for name, checker in CHECKERS.items()} == TEXTS
    assert "pip install" in listed["why_no_checks"]
    assert listed["why_no_checks"] in run_bare("-m", "quorumlog", "chaos", "list").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "run", "--json"),
        ("chaos", "run", "--json"),
        ("simulate", "nodes", "--seeds", "1", "--json"),
        ("chaos", "export", "run"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_that_needs_an_extra_names_it(words: tuple[str, ...]) -> None:
    refused = run_bare("-m", "quorumlog", *words)
    assert refused.returncode == EXIT_UNKNOWN, refused.stderr
    [line] = refused.stderr.splitlines()
    assert line.startswith("quorumlog: histories and checks need numpy: pip install '")
    assert line.endswith("[chaos]'")
    if "--json" in words:
        assert json.loads(refused.stdout) == {"error": line.removeprefix("quorumlog: ")}


def test_a_test_that_needs_an_extra_fails_in_one_line(tmp_path: Path) -> None:
    lines = WITH_HISTORY.splitlines()
    (tmp_path / "test_it.py").write_text("\n".join(line[4:] for line in lines))
    options = ("-p", "no:cacheprovider", "-p", "quorumlog.testing.plugin", "--tb=short")
    no_others = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # they lack something
    words = ("-m", "pytest", *options, "test_it.py")
    ran = run_bare(*words, also="pytest", directory=tmp_path, **no_others)
    assert "1 passed, 3 errors" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("histories and checks need numpy: pip install '") >= 3
    assert "Traceback" not in ran.stdout
    assert "INTERNALERROR" not in ran.stdout
