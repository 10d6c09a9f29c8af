"""What examples/ shows works as it stands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.added_parts import install_project

pytestmark = pytest.mark.integration
EXAMPLES = Path(__file__).parents[2] / "examples"


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
