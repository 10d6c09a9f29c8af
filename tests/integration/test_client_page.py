"""Every block of Python of docs/client.md runs as it stands, one after the other."""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiokafka
import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.client import NewTopic
from quorumlog.client.settings import ConsumerSettings, ProducerSettings

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[2] / "docs/client.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)`[^|]*\| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1) as running:
        yield running


async def run(code: str, names: dict[str, Any]) -> None:
    """Run code that may have `await` outside of functions."""
    compiled = compile(code, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.isawaitable(result):
        await result


async def test_the_samples_run(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with Admin(cluster.bootstrap) as admin:
        topics = [NewTopic(name, num_partitions=1) for name in ("orders", "events", "invoices")]
        await admin.create_topics(topics)
    calls = count()
    names: dict[str, Any] = {"enough": lambda: next(calls) == 5}
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 7
    async with asyncio.timeout(120):
        for block in blocks:
            await run(block.replace("127.0.0.1:9092", cluster.bootstrap), names)
    printed = capsys.readouterr().out
    assert "events-0 2 b'not JSON'" in printed
    assert "written: events" in printed
    assert "\ncommitted: {TopicPartition(topic='orders', partition=0)" in printed
    reader: dict[str, Any] = {}
    code = (
        "async with Consumer(bootstrap) as consumer:\n"
        "    at = TopicPartition('invoices', 0)\n"
        "    end = (await consumer.end_offsets([at]))[at]\n"
    )
    await run("from quorumlog.client import Consumer, TopicPartition", reader)
    reader["bootstrap"] = cluster.bootstrap
    await run(code, reader)
    assert reader["end"] >= 2  # invoices, and the marker of their transaction


def test_the_settings_have_the_defaults_of_the_table() -> None:
    ours = [ProducerSettings(bootstrap_servers="h:1"), ConsumerSettings(bootstrap_servers="h:1")]
    theirs = {
        name: parameter.default
        for kind in (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer)
        for name, parameter in inspect.signature(kind.__init__).parameters.items()
    }
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) >= 10
    compared = 0
    for name, default, of_aiokafka in rows:
        if default.strip('`"').isdigit() or default.startswith("`"):
            [value] = [getattr(one, name) for one in ours if hasattr(one, name)]
            assert default.strip('`"') == str(value), name
        if of_aiokafka.isdigit() and name != "acks":  # decided at construction
            assert theirs[name] == int(of_aiokafka), name
            compared += 1
    assert compared >= 2
