"""Commits of metadata: how many a second, and how soon the first one after the controller died.

A commit changes one configuration of a topic: one record, on the disks of a majority of three.
etcd, if it is here (Debian: etcd-server), does the same with one key, in the same run: 500 requests
in flight over its JSON gateway, round by round in turn with ours: the machine may be slower now.
"""

import asyncio
import base64
import itertools
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.measure import Figure, Table
from quorumlog import Admin, LocalCluster
from quorumlog.client import KafkaError, NewTopic

IN_FLIGHT: Final = 500
ADMINS: Final = IN_FLIGHT  # a broker answers the requests of one connection in turn
SETTLE_S: Final = 5.0  # until the logs of all topics are open
SECONDS: Final = 4.0  # of each round
ROUNDS: Final = 3
ETCD_PORT: Final = 23790
ETCD_START_S: Final = 20.0
PATIENCE_S: Final = 20.0

Commit = Callable[[], Awaitable[None]]


async def _rate(commits: list[Commit]) -> float:
    """Return how many commits a second come of callers that each wait for their last one."""
    done = 0
    end_s = time.monotonic() + SECONDS

    async def work(commit: Commit) -> None:
        nonlocal done
        while time.monotonic() < end_s:
            await commit()
            done += 1

    started_s = time.monotonic()
    await asyncio.gather(*map(work, commits))
    return done / (time.monotonic() - started_s)


def _change(admin: Admin, topic: str, numbers: Iterator[int]) -> Commit:
    async def commit() -> None:
        await admin.alter_configs("topic", topic, {"retention.ms": 10_000_000 + next(numbers)})

    return commit


@asynccontextmanager
async def our_commits(bootstrap: str) -> AsyncIterator[list[Commit]]:
    """Yield the commits of a cluster of ours, one for each caller.

    Each caller changes a topic of its own: its broker answers when it sees that very change.
    """
    numbers = itertools.count()
    topics = [f"commits-{at}" for at in range(IN_FLIGHT)]
    admins = [Admin(bootstrap) for _ in range(ADMINS)]
    try:
        for admin in admins:
            await admin.start()
        await admins[0].create_topics([NewTopic(topic, 1, 1) for topic in topics])
        await asyncio.sleep(SETTLE_S)
        yield [_change(admins[at % ADMINS], topic, numbers) for at, topic in enumerate(topics)]
        await admins[0].delete_topics(topics)
    finally:
        for admin in admins:
            await admin.stop()


@asynccontextmanager
async def etcd_commits(port: int) -> AsyncIterator[list[Commit]]:
    """Yield the commits of the etcd that listens there, once it makes one."""
    numbers = itertools.count()
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def put() -> None:
            value = base64.b64encode(b"%d" % next(numbers)).decode()
            url = f"http://127.0.0.1:{port}/v3/kv/put"
            async with session.post(url, json={"key": "YmVuY2g=", "value": value}) as answer:
                answer.raise_for_status()
                await answer.read()

        deadline_s = time.monotonic() + ETCD_START_S
        while True:
            try:
                await put()
                break
            except (aiohttp.ClientError, OSError):
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(0.2)
        yield [put] * IN_FLIGHT


async def rates(bootstrap: str, port: int | None) -> list[float]:
    """Return the median rate of ours; and that of etcd, if `port` is one: measured in turn."""
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(our_commits(bootstrap))]
        if port is not None:
            both.append(await stack.enter_async_context(etcd_commits(port)))
        rounds = [[await _rate(commits) for commits in both] for _ in range(ROUNDS)]
    return [statistics.median(of_one) for of_one in zip(*rounds, strict=True)]


@contextmanager
def etcd(table: Table) -> Iterator[int | None]:
    """Run three members of etcd; yield the port of one, or None if it is not here."""
    command = shutil.which("etcd")
    if command is None:
        table.note("etcd (Debian: etcd-server) is not here: skipped")
        yield None
        return
    peers = ",".join(f"m{at}=http://127.0.0.1:{ETCD_PORT + 2 * at + 1}" for at in range(3))
    with tempfile.TemporaryDirectory(prefix="etcd-peer-") as scratch:
        members = []
        for at in range(3):
            client, peer = (f"http://127.0.0.1:{ETCD_PORT + 2 * at + more}" for more in (0, 1))
            options = {
                "name": f"m{at}",
                "data-dir": str(Path(scratch) / f"m{at}"),
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": peers,
                "log-level": "error",
            }
            words = [command, *(f"--{name}={value}" for name, value in options.items())]
            members.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
        try:
            yield ETCD_PORT
        finally:
            for member in members:
                member.send_signal(signal.SIGKILL)
                member.wait()


async def next_commit_s(cluster: LocalCluster, topic: str) -> float:
    """SIGKILL the active controller; return the seconds until metadata is committed again."""
    controller = int(cluster.status()["controller_id"])
    others = [one.kafka for one in cluster.nodes if one.id != controller]
    numbers = itertools.count(1_000_000)
    async with Admin(others, default_api_timeout_ms=400, request_timeout_ms=300) as admin:
        commit = _change(admin, topic, numbers)
        await commit()
        await asyncio.to_thread(cluster.kill, controller)
        killed_s = time.monotonic()
        committed_s: list[float] = []

        async def attempt() -> None:
            with suppress(KafkaError, ConnectionError, TimeoutError):
                await commit()
                committed_s.append(time.monotonic())

        attempts = []
        while not committed_s and time.monotonic() < killed_s + PATIENCE_S:
            attempts.append(asyncio.create_task(attempt()))
            await asyncio.sleep(0.02)
        await asyncio.gather(*attempts)
    await asyncio.to_thread(cluster.start_node, controller)
    return min(committed_s) - killed_s


def metadata(table: Table, cluster: LocalCluster, topic: str, *, kills: int = 5) -> None:
    """Measure both, and etcd."""
    with etcd(table) as port:
        rate, *others = asyncio.run(rates(cluster.bootstrap, port))
    name = f"metadata commits, {IN_FLIGHT} in flight, 3 nodes (median of {ROUNDS})"
    table.add(Figure(name=name, value=rate, unit="/s"))
    for theirs in others:
        table.add(Figure(name="etcd: the same, in turn", value=theirs, unit="/s"))
        share = "our rate as a multiple of it"
        table.add(Figure(name=share, value=rate / theirs, unit="x", goal=0.5, at_most=False))
    gaps_s = sorted(asyncio.run(next_commit_s(cluster, topic)) for _ in range(kills))
    for name, value in (("median", gaps_s[len(gaps_s) // 2]), ("longest", gaps_s[-1])):
        goal = 0.5 if name == "median" else None
        table.add(
            Figure(
                name=f"kill -9 of the active controller -> metadata committed ({name} of {kills})",
                value=value,
                unit="s",
                goal=goal,
            )
        )
