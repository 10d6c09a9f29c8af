"""What examples/ shows works as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

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
