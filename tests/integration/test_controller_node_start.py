"""One process on a directory of its own: however its start ends, it ends in order, and says why."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.cluster import layout

pytestmark = pytest.mark.integration
TIMEOUT_S = 60
Process = subprocess.Popen[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    spec = layout.plan([("broker", "controller")], host="127.0.0.1", port=0, config={})
    layout.found(tmp_path, spec)
    layout.save(tmp_path, spec)
    return layout.data_directory(tmp_path, 1)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Every process that a test has started: none outlives it."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def start(started: list[Process], data: Path, ready_fd: int | None = None) -> Process:
    command = [sys.executable, "-m", "quorumlog.node", str(data.parent / "node.properties")]
    fds = () if ready_fd is None else (ready_fd,)
    options = [] if ready_fd is None else ["--ready-fd", str(ready_fd)]
    process = subprocess.Popen(
        [*command, *options], stderr=subprocess.PIPE, text=True, pass_fds=fds
    )
    started.append(process)
    return process


def wait_until_said(process: Process, text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), text


def stop(process: Process) -> None:
    """SIGTERM; it must end in order."""
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, "Traceback" in rest) == (0, False), rest


@pytest.mark.parametrize(
    "moment", ["is new, with directory id", "the leader is 1", "is registered"]
)
def test_told_to_stop_while_it_starts_it_stops_and_can_start_again(
    data: Path, started: list[Process], moment: str
) -> None:
    process = start(started, data)
    wait_until_said(process, moment)
    stop(process)
    again = start(started, data)
    wait_until_said(again, "quorumlog.node: ready")
    stop(again)
    assert (data / ".kafka_cleanshutdown").exists()


def test_who_started_it_may_be_gone_when_it_is_ready(data: Path, started: list[Process]) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    process = start(started, data, write_fd)
    os.close(write_fd)
    wait_until_said(process, "the readiness pipe is closed")
    stop(process)
    assert (data / ".kafka_cleanshutdown").exists()


def test_what_cannot_be_read_once_the_quorum_runs_is_its_last_word(
    data: Path, started: list[Process]
) -> None:
    checkpoint = data / "recovery-point-offset-checkpoint"
    checkpoint.mkdir(parents=True)
    process = start(started, data)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    last = errors.strip().splitlines()[-1]
    assert (process.returncode, last) == (
        1,
        f"quorumlog: cannot use {data}: [Errno {errno.EISDIR}] Is a directory: '{checkpoint}'",
    )


def test_a_process_that_waits_on_a_directory_in_use_is_told_so(
    data: Path, started: list[Process]
) -> None:
    first = start(started, data)
    wait_until_said(first, "the leader is 1")
    second = start(started, data)
    _, errors = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 1
    assert errors == f"quorumlog: {data} is in use by another process\n"
    stop(first)
