"""The readers of the workloads: none stays blind, and final reads go as far as clients know."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.drivers.driver import CallTimedOut, DriverError, Record
from quorumlog.chaos.history import read_history
from tests.support.chaos.carried_out import carried_out
from tests.support.chaos.hand_made_histories import found
from tests.support.chaos.log_in_memory import Client, LogInMemory

pytestmark = pytest.mark.jumping_time
SENDS = 60
Misbehave = Callable[["Unsteady"], None]


class Unsteady(LogInMemory):
    """A driver whose consumers ask `before_poll` before each poll, and `ends` for the ends."""

    def __init__(self) -> None:
        super().__init__(partitions=2)
        self.before_poll: Misbehave = lambda _: None
        self.ends: Callable[[int], int] = lambda end: end
        self.polls = 0

    async def consumer(self, bootstrap: str, client_id: str) -> Client:
        del bootstrap, client_id
        return UnsteadyConsumer(self)


class UnsteadyConsumer(Client):
    """A consumer that may fail. Once it was out of range, it returns nothing any more."""

    def __init__(self, driver: Unsteady) -> None:
        super().__init__(driver)
        self._log = driver
        self._is_parked = False

    async def poll(self, timeout_ms: int) -> list[Record]:
        await asyncio.sleep(timeout_ms / 1000)
        if self._is_parked:
            return []
        self._log.polls += 1
        try:
            self._log.before_poll(self._log)
        except DriverError as error:
            self._is_parked = error.code == "OFFSET_OUT_OF_RANGE"
            raise
        return await super().poll(timeout_ms)

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        ends = await super().end_offsets(topic, partitions)
        return {index: self._log.ends(end) for index, end in ends.items()}


async def ran(out: Path, log: Unsteady) -> tuple[Verdict, list[dict[str, Any]]]:
    """Run append_read; return the verdict and the operations."""
    options = {"rate": 50.0, "producers": 2, "consumers": 1, "final_readers": 2}
    verdict = await carried_out(out, "append_read", log, SENDS, options, partitions=2, final_s=60.0)
    return verdict, read_history(out).to_pylist()


def fails(number: int, error: DriverError) -> Misbehave:
    def misbehave(log: Unsteady) -> None:
        if log.polls == number:
            raise error

    return misbehave


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (DriverError("OFFSET_OUT_OF_RANGE", "t-0: offset 3"), "fail"),
        (CallTimedOut("poll", 10.0), "info"),
    ],
)
async def test_a_reader_that_lost_its_position_begins_again(
    error: DriverError, outcome: str, tmp_path: Path
) -> None:
    log = Unsteady()
    log.before_poll = fails(3, error)
    _, operations = await ran(tmp_path, log)
    polls = [one for one in operations if one["f"] == "poll"]
    first, second = dict.fromkeys(one["process"] for one in polls)
    assert [one["type"] for one in polls if one["process"] == first][-1] == outcome
    assert {one["type"] for one in polls if one["process"] == second} == {"ok"}
    assigned = [one["process"] for one in operations if one["f"] == "assign"]
    assert assigned[:2] == [first, second]
    assert next(one["error"] for one in polls if one["error"]) == str(error)
    seen = [m["value"] for one in polls if one["process"] == second for m in one["micro"]]
    assert min(seen) < 3, "the new life begins at the beginning"


async def test_a_poll_that_failed_is_tried_again_by_the_same_reader(tmp_path: Path) -> None:
    log = Unsteady()
    log.before_poll = fails(3, DriverError("NETWORK_EXCEPTION", "lost"))
    verdict, operations = await ran(tmp_path, log)
    assert verdict.valid is True, verdict.as_json()
    polls = [one for one in operations if one["f"] == "poll"]
    assert len({one["process"] for one in polls}) == 1
    assert [one["error"] for one in polls if one["error"]] == ["NETWORK_EXCEPTION: lost"]


async def test_an_end_below_what_was_seen_is_asked_for_again(tmp_path: Path) -> None:
    log = Unsteady()
    asked = 0

    def low_at_first(end: int) -> int:
        nonlocal asked
        asked += 1
        return end - 5 if asked <= 8 else end

    log.ends = low_at_first
    verdict, operations = await ran(tmp_path, log)
    assert found(verdict) == ["log-end-regression"]
    ends = [one for one in operations if one["f"] == "final_end"]
    assert "the end lies below the last record" in {one["error"] for one in ends}
    assert [one["type"] for one in ends].count("ok") == 2


async def test_an_end_that_stays_too_low_is_believed_in_the_end(tmp_path: Path) -> None:
    log = Unsteady()
    log.ends = lambda end: end - 5
    verdict, operations = await ran(tmp_path, log)
    assert verdict.valid is False
    assert "log-end-regression" in found(verdict)
    ends = [one for one in operations if one["f"] == "final_end"]
    assert [one["type"] for one in ends].count("ok") == 2
