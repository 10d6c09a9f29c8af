"""Our figures and Apache Kafka's: whose turn it is, when it is warm, and the columns of a table."""

import asyncio
import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import beside_kafka, failover, load
from benchmarks.beside_kafka import Pace, compare, flat_after, rows
from benchmarks.measure import Cost, Figure, Table
from quorumlog.wire.codec.messages.fetch import FetchRequest
from quorumlog.wire.codec.schemas import decode_request

PACE = Pace(repetitions=2, warm_up_s=8.0, warm_up_min_s=0)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_kafka, "_RESUMED_S", 0.0)


class Recorded:
    """A cluster whose calls are noted, in the order of all clusters."""

    ids = (1,)
    bootstrap = "127.0.0.1:1"

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self._calls = name, calls

    def pause(self, _node_id: int) -> None:
        self._calls.append(f"pause {self.name}")

    def resume(self, _node_id: int) -> None:
        self._calls.append(f"resume {self.name}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []
    names = itertools.chain(["cold"], itertools.repeat("warm"))

    @contextmanager
    def running(opened: Any, _nodes: int) -> Iterator[Recorded]:
        yield Recorded("ours" if opened is beside_kafka.ours else next(names), noted)

    monkeypatch.setattr(beside_kafka, "running", running)
    return noted


def measure_of(calls: list[str]) -> beside_kafka.Measure:
    values = itertools.count(1)

    def measure(cluster: Any, pace: Pace) -> list[Figure]:
        calls.append(f"{cluster.name} for {pace.seconds:g} s")
        return [Figure(name="rate", value=next(values), unit="MB/s", cost=Cost(50, "batch"))]

    return measure


def test_both_take_turns_and_the_other_one_is_paused(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    monkeypatch.setattr(beside_kafka, "why_not", lambda: "")
    monkeypatch.setattr(beside_kafka, "_NEAR", 4)
    table = Table()
    compare(table, [measure_of(calls)], PACE)
    ours = ["pause warm", "ours for 5 s", "resume warm"]
    assert calls == [
        "cold for 5 s",
        *["warm for 8 s"] * 3,
        *ours,
        "warm for 5 s",
        *ours,
        "warm for 5 s",
    ]
    [figure] = table.figures
    assert (figure.value, figure.beside["cold"].value, figure.beside["warm"].value) == (5, 1, 6)
    assert table.notes == ["Apache Kafka, load to warm up, 3 x 8 s: 2, 3, 4, flat"]


def test_without_kafka_its_columns_are_absent_and_the_note_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    monkeypatch.delenv("QUORUMLOG_BENCH_KAFKA", raising=False)
    table = Table()
    compare(table, [measure_of(calls)], PACE)
    assert calls == ["ours for 5 s"] * 2
    assert "Apache Kafka," not in table.markdown()
    assert "https://kafka.apache.org/downloads" in table.notes[0]


@pytest.mark.parametrize(
    ("rates", "runs"),
    [([10, 20, 30, 31, 32, 33], 5), ([10, 11, 9.9, 20, 50, 50], 7), ([7, 7, 7, 7], 3)],
)
def test_it_is_warm_once_three_runs_in_a_row_are_within_a_tenth(
    rates: Sequence[float], runs: int
) -> None:
    left = iter([*rates, *[rates[-1]] * 3])
    seen, is_flat = flat_after(lambda: next(left), min_s=0, max_s=60)
    assert (len(seen), is_flat) == (runs, True)


def test_a_warm_up_ends_with_its_time() -> None:
    assert flat_after(lambda: 1.0, min_s=0, max_s=0) == ([], False)


def test_a_warm_up_does_not_end_where_a_jvm_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))
    left = iter([14.0] * 8 + [49.0] * 3)
    seen, is_flat = flat_after(lambda: next(left), min_s=18, max_s=300)
    assert (seen[-3:], is_flat) == ([49.0] * 3, True)


def figure(value: float, cpu_us: float) -> Figure:
    return Figure(name="rate", value=value, unit="MB/s", cost=Cost(cpu_us, "batch"), load=3.25)


def test_a_row_has_the_median_of_each_column_with_its_own_cpu() -> None:
    columns = {"": [[figure(3, 30)], [figure(1, 99)], [figure(4, 20)]], "warm": [[figure(2, 40)]]}
    table = Table(figures=list(rows({**columns, "cold": []})))
    assert table.markdown().splitlines() == [
        "| figure | value | goal |  | Apache Kafka, warm | load average |",
        "|---|---:|---:|---|---:|---:|",
        "| rate | 3.00 MB/s, 30 us/batch |  |  | 2.00 MB/s, 40 us/batch | 3.2 |",
    ]


@given(sizes=st.lists(st.integers(0, 70), min_size=1, max_size=8), cut=st.integers(1, 40))
def test_frames_are_whole_however_their_bytes_arrive(sizes: list[int], cut: int) -> None:
    frames = [bytes([at]) * size for at, size in enumerate(sizes)]
    data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    with pytest.MonkeyPatch.context() as patched, socket.create_server(("127.0.0.1", 0)) as server:
        patched.setattr(load, "FETCH_BYTES", 4)  # a buffer of 16 bytes at first
        connection = load.Connection(*server.getsockname())
        far, _ = server.accept()
    received: list[bytes] = []
    with connection.socket, far:
        for begin in range(0, len(data), cut):
            far.sendall(data[begin : begin + cut])
        while len(received) < len(frames):
            received += map(bytes, connection.frames())
    assert received == frames


def test_a_fetch_waits_for_nothing() -> None:
    header, request = decode_request(load._fetch_frame("t", 2, 30, load.FETCH_BYTES)[4:])
    assert isinstance(request, FetchRequest)
    assert (header.api_version, request.max_wait_ms, request.min_bytes) == (4, 0, 0)
    [place] = request.topics[0].partitions
    assert (place.partition, place.fetch_offset, place.partition_max_bytes) == (2, 30, 1 << 20)


@pytest.mark.jumping_time
async def test_a_gap_begins_with_an_acknowledgement_before_the_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = asyncio.get_running_loop()
    monkeypatch.setattr(failover, "time", SimpleNamespace(monotonic=clock.time))
    dies_s: list[float] = []

    async def acknowledge(_: str, __: str, partition: int, times: list[float]) -> None:
        await asyncio.sleep(5 * partition)  # a cold server acknowledges late
        while True:
            if partition and dies_s and clock.time() < dies_s[0] + 9:
                await asyncio.sleep(dies_s[0] + 9 - clock.time())
            times.append(clock.time())
            await asyncio.sleep(0.25)

    async def die() -> None:
        dies_s.append(clock.time())

    monkeypatch.setattr(failover, "_acknowledge", acknowledge)
    gap_s = await failover.longest_gap_s("", "t", 2, die, after_s=20)
    assert 9 <= gap_s <= 9.25
