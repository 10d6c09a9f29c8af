"""The pytest plugin as a user has it: a project of its own, real clusters, and runs cut short."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quorumlog.cluster import registry
from tests.support.testing.plugin import pytest_command, run_pytest

pytestmark = pytest.mark.integration
PROJECT = Path(__file__).parents[2] / "examples" / "pytest_project"
WAITS = """
import time
from pathlib import Path

def test_waits(quorumlog_cluster, topic, nemesis):
    nemesis.pause("isr-follower")
    Path("ready").write_text(str(quorumlog_cluster.directory))
    time.sleep(60)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy = tmp_path / "project"
    shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return copy


def nodes_in(directory: str) -> list[int]:
    """Return the processes of nodes whose files lie below a directory."""
    return [entry.pid for entry in registry.running() if entry.directory.startswith(directory)]


@pytest.mark.timeout(400)  # nine tests with clusters, of which three carry out runs
def test_the_example_project_passes_with_two_workers(project: Path) -> None:
    done = run_pytest(project, "-n", "2", "--junitxml=out.xml", "--basetemp=base", timeout_s=380)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = list(ElementTree.parse(project / "out.xml").iter("testcase"))
    assert len(cases) == 9
    properties = {
        case.get("name"): {one.get("name"): one.get("value") for one in case.iter("property")}
        for case in cases
    }
    assert properties["test_acknowledged_records_survive"] == {
        "quorumlog_seed": "3",
        "quorumlog_verdict": "valid",
    }
    assert (
        properties["test_a_cluster_that_spoils_what_it_serves_is_found_out"]["quorumlog_verdict"]
        == "invalid"
    )
    assert [*(project / "base").glob("*/quorumlog/*")] == []  # what passed leaves nothing
    assert nodes_in(str(project)) == []


@contextmanager
def a_test_that_waits(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a pytest in the middle of a test, and the directory of its cluster."""
    (directory / "test_it.py").write_text(WAITS)
    with subprocess.Popen(
        pytest_command(["--basetemp=base"]),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            ready, deadline_s = directory / "ready", time.monotonic() + 60
            while not (ready.exists() and ready.read_text()):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            assert len(nodes_in(ready.read_text())) == 3
            yield process, ready.read_text()
        finally:
            process.kill()


def until_gone(directory: str) -> list[int]:
    deadline_s = time.monotonic() + 30
    while (left := nodes_in(directory)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    with a_test_that_waits(tmp_path) as (process, cluster):
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == pytest.ExitCode.INTERRUPTED, said
        assert nodes_in(cluster) == []


def test_no_node_outlives_a_pytest_that_was_killed(tmp_path: Path) -> None:
    with a_test_that_waits(tmp_path) as (process, cluster):
        for node in nodes_in(cluster):
            os.kill(node, signal.SIGCONT)  # a node that stands still hears of nothing
        process.kill()
        process.wait()
        assert until_gone(cluster) == []


def test_a_chaos_run_ends_with_ctrl_c_as_well(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.chaos(duration='60s', seed=1)\ndef test_long(): pass\n"
    )
    with subprocess.Popen(
        pytest_command(["--quorumlog-store", "runs"]),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        run = tmp_path / "runs" / "test_it.py-test_long"
        deadline_s = time.monotonic() + 60
        while not (run / "history.jsonl").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        assert nodes_in(str(run)) == []


FAILS = """
import pytest

@pytest.mark.chaos(
    faults=[], duration="2s", seed=7, mutant="spoils-reads", nodes=1, options={"rate": 300}
)
def test_fails(): pass
"""


def test_a_failed_run_is_kept_and_names_the_command_that_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILS)
    done = run_pytest(tmp_path, "--quorumlog-store", "runs")
    assert done.returncode == 1, done.stdout + done.stderr
    run = tmp_path / "runs" / "test_it.py-test_fails"
    assert f"kept    {run}" in done.stdout
    assert (
        "repeat  quorumlog chaos run --workload append_read --fault none --duration 2s "
        "--seed 7 --nodes 1 --workload-option rate=300 --mutant spoils-reads" in done.stdout
    )
    names = {path.name for path in run.iterdir()}
    assert {"history.jsonl", "schedule.json", "verdict.json", "report.html", "cluster"} <= names


def test_a_mistyped_mark_is_told_by_workers_as_well(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.chaos(faults=['kil'])\ndef test_it(): pass\n"
    )
    done = run_pytest(tmp_path, "-n", "1")
    assert done.returncode != 0
    assert "did you mean kill?" in done.stdout
    assert "INTERNALERROR" not in done.stdout
