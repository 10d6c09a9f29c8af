"""Ctrl-C at several moments of runs behind forwarders: no node and no forwarder is left."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.cluster import process_identity

pytestmark = pytest.mark.integration

_PATIENCE_S = 240.0


def children_of(parent: int) -> set[int]:
    done = subprocess.run(["ps", "-o", "pid=,ppid=", "-A"], capture_output=True, check=True)
    pairs = [line.split() for line in done.stdout.decode().splitlines()]
    return {int(child) for child, its_parent in pairs if int(its_parent) == parent}


def is_there(pid: int) -> bool:
    return process_identity.started(pid) is not None


def holds(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


class Run:
    """A run in a process of its own, and the moment at which it is to be interrupted."""

    def __init__(self, out: Path, is_due: Callable[["Run"], bool]) -> None:
        self.out, self._is_due = out, is_due
        out.mkdir()
        command = [sys.executable, "-m", "quorumlog", "chaos", "run", "--out", str(out)]
        command += ["--fault", "isolate-role:partition-leader", "--duration", "30s", "--nodes", "1"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.children = set[int]()

    def is_due(self) -> bool:
        """Look at the children, too: afterwards it cannot be known whose they were."""
        assert self.process.poll() is None, self.process.communicate()
        self.children |= children_of(self.process.pid)
        return self._is_due(self)

    def interrupt(self) -> str:
        """Interrupt it as `kill` does; return what it said."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=_PATIENCE_S)
        return said


MOMENTS: dict[str, Callable[[Run], bool]] = {
    "forwarders start": lambda run: bool(run.children),
    "nodes start": lambda run: holds(run.out / "cluster/node-1/node.log", "directory id"),
    "clients work": lambda run: holds(run.out / "history.jsonl", '"send"'),
    "links are cut": lambda run: holds(run.out / "history.jsonl", '"isolate_role"'),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_left_running(tmp_path: Path, moment: str) -> None:
    run = Run(tmp_path / "run", MOMENTS[moment])
    deadline_s = time.monotonic() + _PATIENCE_S
    try:
        while not run.is_due():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        said = run.interrupt()
        assert run.process.returncode == 130, said
        assert "Traceback" not in said
        assert "interrupted; the processes of this run are stopped" in said
        assert not [child for child in run.children if is_there(child)]
    finally:
        run.process.kill()
        run.process.communicate()
