"""The quorum, elections and the files on disk of a real cluster, told by commands."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog import LocalCluster
from quorumlog.client import Admin, Consumer, NewTopic, Producer
from quorumlog.cluster import layout
from tests.support.cli.processes import Commands

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("dump_log")]
TOPIC, COUNT = "orders", 20


def told(*words: str | Path) -> Any:
    """Run a command that is to succeed; return its document."""
    return Commands().json(*map(str, words))


async def fill(bootstrap: str) -> None:
    """Produce records to a topic, read them in a group, and commit."""
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(TOPIC, 1, 1)])
    async with Producer(bootstrap) as producer:
        for index in range(COUNT):
            await producer.send(TOPIC, value=b"%d" % index)
    async with Consumer(bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        seen = 0
        while seen < COUNT:
            seen += sum(map(len, (await consumer.poll(timeout_ms=1000)).values()))
        await consumer.commit()


def records_in(files: list[dict[str, Any]], directory: str) -> list[dict[str, Any]]:
    return [
        record.get("decoded", record)
        for one in files
        if Path(one["file"]).parent.name.startswith(directory) and one["kind"] == "log"
        for batch in one["batches"]
        for record in batch["records"]
    ]


async def test_a_cluster_and_its_files_are_told(tmp_path: Path) -> None:
    data = layout.node_directory(tmp_path, 1) / "data"
    with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        await fill(cluster.bootstrap)
        at = ("--bootstrap", cluster.bootstrap)
        quorum = told("quorum", "describe", *at)
        assert quorum["leader_id"] == 1
        assert [voter["lag"] for voter in quorum["voters"]] == [0]
        elected = told("elect", "--preferred", "--topic", TOPIC, *at)
        assert [one["error"] for one in elected["partitions"]] == ["ELECTION_NOT_NEEDED"]
        running = told("dump-log", data, "--values")["files"]
    stopped = told("dump-log", data, "--index-sanity")["files"]
    for files in (running, stopped):
        assert [record["offset"] for record in records_in(files, TOPIC)] == [*range(COUNT)]
        kinds = {record["type"] for record in records_in(files, "__cluster_metadata")}
        assert {"LEADER_CHANGE", "RegisterBroker", "Topic", "Partition"} <= kinds
        offsets = [
            one["committed"]["offset"]
            for one in records_in(files, "__consumer_offsets")
            if one["type"] == "OffsetCommit" and one["group"] == "readers"
        ]
        assert offsets[-1] == COUNT
    values = [record["value"] for record in records_in(running, TOPIC)]
    assert values == [str(index) for index in range(COUNT)]
    kinds = {one["kind"] for one in stopped}
    assert {"offset_index", "time_index", "producers", "leader_epochs", "clean_shutdown"} <= kinds
