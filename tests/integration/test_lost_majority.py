"""Without a majority nothing can be decided: commands and clients say so within seconds."""

import asyncio
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import KafkaError, NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin
from tests.support.cli.processes import Commands

pytestmark = pytest.mark.integration
LOGGER = "quorumlog.client.io.lookout"
PARTITIONS = [TopicPartition("o", index) for index in range(6)]
LIMIT_S = 60  # a machine may be slow; the line itself says how long the client has waited
WAITED = re.compile(r"\(for [3-9] s\)")  # by the client's own clock


def kill_two(cluster: LocalCluster) -> None:
    cluster.kill(1, 2)


def pause_and_kill(cluster: LocalCluster) -> None:
    cluster.pause(1)
    cluster.kill(2)


@pytest.fixture(params=[kill_two, pause_and_kill], ids=["two-killed", "paused-and-killed"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Start three nodes, and leave only node 3."""

    async def create(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic("o", 6, 3)])
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("o", b"kept", partition=0)

    with LocalCluster(tmp_path / "cluster", nodes=3) as cluster:
        asyncio.run(create(cluster.bootstrap))
        request.param(cluster)
        while leads(cluster, 3):  # until it misses the majority
            time.sleep(0.05)
        yield cluster
        cluster.kill(*cluster.running())


def leads(cluster: LocalCluster, node_id: int) -> bool:
    view = cluster.node_status(node_id)
    return view is None or bool(view["quorum"]["is_active_controller"])


def command(cluster: LocalCluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "quorumlog", *words, "--dir", str(cluster.directory)]


def run(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return Commands().ended(*words, "--dir", str(cluster.directory))


def first_line_on_stderr(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_commands_say_why_they_wait(cluster: LocalCluster) -> None:
    waiting = {
        "produce": ("produce", "o"),
        "consume": ("consume", "o", "--from", "beginning", "--max", "100"),
        "quorum": ("quorum", "describe"),
    }
    processes = {
        name: subprocess.Popen(
            command(cluster, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, words in waiting.items()
    }
    try:
        stdin = processes["produce"].stdin
        assert stdin is not None
        stdin.write("1\n")
        stdin.flush()
        said = {name: first_line_on_stderr(process) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    assert all(WAITED.search(line) for line in said.values()), said
    assert re.search("a producer id: |its leader, broker ", said["produce"])
    assert "does not answer DescribeQuorum, for which it needs the active" in said["quorum"]
    assert re.search("o-[0-9].*: its leader, broker [12], ", said["consume"])


def test_status_names_what_is_left(cluster: LocalCluster) -> None:
    status = run(cluster, "status")
    assert status.returncode == 3, status
    lines = status.stdout.splitlines()
    assert lines[0] == "NO QUORUM: 1 of 3 voters answers; below is the last state of node 3"
    assert lines[1].endswith("active controller none")
    document = json.loads(run(cluster, "status", "--json").stdout)
    states = {node["id"]: node["state"] for node in document["nodes"]}
    assert states == {1: states[1], 2: "killed", 3: "running"}
    assert states[1] in {"paused", "killed"}
    assert document["controller_id"] is None
    assert document["quorum"]["answering"] == [3]
    assert document["quorum"]["has_majority"] is False
    assert document["partitions"]["leader_not_answering"] > 0
    assert re.search(r"leader 2 \(dead\)", status.stdout)
    described = run(cluster, "topics", "describe", "o")
    assert described.returncode == 0
    assert "NO QUORUM: no active controller answers" in described.stderr


Client = Callable[[str, str], Awaitable[object]]


async def produce(bootstrap: str, client_id: str) -> None:
    async with Producer(bootstrap, client_id=client_id) as producer:
        try:
            await producer.send_and_wait("o", b"")
        finally:
            await producer.stop(timeout_ms=0)


async def consume(bootstrap: str, client_id: str) -> None:
    async with Consumer(bootstrap, client_id=client_id) as consumer:
        consumer.assign(PARTITIONS)
        while True:
            await consumer.poll(1_000)


async def describe(bootstrap: str, client_id: str) -> None:
    async with Admin(bootstrap, client_id=client_id) as admin:
        await admin.describe_quorum()


async def describe_in_a_thread(bootstrap: str, client_id: str) -> None:
    def block() -> None:
        options: Any = {"client_id": client_id, "default_api_timeout_ms": 6_000}
        with SyncAdmin(bootstrap, **options) as admin:
            admin.describe_quorum()

    with pytest.raises(KafkaError):
        await asyncio.to_thread(block)


def test_new_clients_say_why_they_wait(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    clients: dict[str, Client] = {
        "producer": produce,
        "consumer": consume,
        "admin": describe,
        "blocking": describe_in_a_thread,
    }

    def first_lines() -> dict[str, str]:
        texts = [record.getMessage() for record in caplog.records]
        return {text.partition(":")[0]: text for text in reversed(texts)}

    async def all_of_them() -> None:
        calls = [
            asyncio.ensure_future(call(cluster.bootstrap, name)) for name, call in clients.items()
        ]
        async with asyncio.timeout(LIMIT_S):
            while not first_lines().keys() >= clients.keys():
                await asyncio.sleep(0.05)
        for call in calls[:-1]:
            call.cancel()
        await asyncio.wait(calls)

    asyncio.run(all_of_them())
    assert all(WAITED.search(first_lines()[name]) for name in clients), caplog.text
