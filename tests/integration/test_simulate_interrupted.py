"""Ctrl-C ends `quorumlog simulate` at once, with all its processes."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def children_of(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=,ppid=", "-A"], capture_output=True, check=True)
    pairs = [line.split() for line in done.stdout.decode().splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def test_no_process_is_left_and_nothing_is_said() -> None:
    command = [sys.executable, "-m", "quorumlog", "simulate", "--seeds", "5000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as simulate:
        while not (workers := children_of(simulate.pid)):
            assert simulate.poll() is None
        simulate.send_signal(signal.SIGINT)  # to it alone, as `kill` does
        out, err = simulate.communicate(timeout=60)
    assert (simulate.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
