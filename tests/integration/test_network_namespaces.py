"""Nodes in network namespaces: links that the kernel cuts, slows and resets, and what it leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.partitions import IsolateRole, PartitionOneWay
from quorumlog.chaos.faults.traffic import ResetConnections, SlowLink
from quorumlog.chaos.history import read_history
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.verify import verify_history

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not()),
]


def action(t_ms: int, fault: StepFault, target: str, duration_ms: int) -> Action:
    return Action(t_us=t_ms * 1000, fault=fault, target=target, duration_us=duration_ms * 1000)


def test_nothing_is_lost_when_the_kernel_breaks_links(tmp_path: Path) -> None:
    actions = (
        action(200, PartitionOneWay(direction="out"), "partition-leader", 1_500),
        action(1_000, SlowLink(bytes_per_s=20_000), "isr-follower", 1_500),
        action(2_500, IsolateRole(), "metadata-leader", 1_500),
        action(2_600, ResetConnections(every_us=300_000), "client", 1_000),
    )
    schedule = Schedule(seed=1, duration_us=4_200_000, actions=actions)
    settings = RunSettings(out=tmp_path, schedule=schedule, duration_s=4.2, seed=1, network="netns")
    summary = run(settings, lambda *_: None)
    assert summary.reads_complete
    assert summary.faults == len(actions)
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is True, verdict.as_json()
    logs = [path.read_text() for path in tmp_path.glob("cluster/node-*/node.log")]
    assert sum(log.count("is the active controller") for log in logs) >= 2
    rows = [row for row in read_history(tmp_path).to_pylist() if row["process"] == -1]
    assert "node-ended" not in {row["f"] for row in rows}


def test_what_a_killed_run_leaves_is_swept_by_the_next(tmp_path: Path) -> None:
    program = """
from quorumlog.chaos.network.namespaces import Namespaces
from quorumlog.cluster.layout import NodeSpec
node = NodeSpec(id=1, roles=(), kafka=":1", control=":1")
with Namespaces([node]) as spaces:
    print(spaces.prefix(1)[-1], flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        bridge = f"ql{name.split('-')[1]}"
        namespaces.sweep()
        assert name in _names("netns"), "its process runs"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    namespaces.sweep()
    assert name not in _names("netns")
    assert bridge not in _names("link")


def _names(kind: str) -> str:
    return subprocess.check_output(["ip", kind], text=True)
