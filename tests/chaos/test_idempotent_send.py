"""The workload idempotent_send: what it writes down, and which broken brokers its checker finds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.drivers.driver import SendFailed
from quorumlog.chaos.history import read_history
from tests.support.chaos.carried_out import carried_out
from tests.support.chaos.log_in_memory import LogInMemory, append

SENDS = 200


async def judged(out: Path, log: LogInMemory) -> Verdict:
    """Run the workload until the log has taken all sends, read everything, and check it."""
    options = {
        "rate": 1e6,
        "producers": 2,
        "burst": 5,
        "bursts_per_life": 1.001,  # a burst that is not cut short waits for its answers
        "consumers": 0,
        "final_readers": 1,
    }
    return await carried_out(out, "idempotent_send", log, SENDS, options, partitions=len(log.logs))


async def test_a_sound_broker_is_valid_and_killed_producers_come_back(tmp_path: Path) -> None:
    log = LogInMemory(partitions=3)
    log.answers = lambda value: int(value) % 7 != 0  # so that each burst is open when it is cut
    verdict = await judged(tmp_path, log)
    assert verdict.valid is True, verdict.as_json()
    assert verdict.figures["indeterminate"] > 20
    rows = [row for row in read_history(tmp_path).to_pylist() if row["f"] == "send"]
    ended = [row["process"] for row in rows if row["type"] == "info"]
    assert len(ended) == len(set(ended)), "a process acted again after an info"
    values = [record["value"] for row in rows for record in row["micro"]]
    assert len(values) == len(set(values)), "a value was sent twice"
    for row in rows:
        if row["type"] == "info":  # those that were acknowledged say so, the others do not
            assert {record["offset"] >= 0 for record in row["micro"]} == {True, False}


def twice(log: list[bytes], value: bytes) -> int:
    append(log, value)
    return append(log, value) if int(value) == 35 else len(log) - 1


def twice_if_unanswered(log: list[bytes], value: bytes) -> int:
    offset = append(log, value)
    if int(value) % 7 == 0:
        append(log, value)
    return offset


def not_at_all(log: list[bytes], value: bytes) -> int:
    return len(log) - 1 if int(value) == 36 else append(log, value)


def out_of_order(log: list[bytes], value: bytes) -> int:
    if len(log) > 10 and int(value) % 5 == 3:
        log[-1], value = value, log[-1]
    return append(log, value)


@pytest.mark.parametrize(
    ("broken", "anomaly"),
    [
        (twice, "duplicate"),
        (twice_if_unanswered, "duplicate"),
        (not_at_all, "lost-write"),
        (out_of_order, "inconsistent-offsets"),
    ],
)
async def test_a_broken_broker_is_found(
    broken: Callable[[list[bytes], bytes], int], anomaly: str, tmp_path: Path
) -> None:
    log = LogInMemory()
    log.append = broken
    log.answers = lambda value: int(value) % 7 != 0
    verdict = await judged(tmp_path, log)
    assert verdict.valid is False
    assert anomaly in {result.name for result in verdict.results}, verdict.as_json()


async def test_a_burst_that_is_refused_for_certain_keeps_its_process(tmp_path: Path) -> None:
    def refuse(log: list[bytes], value: bytes) -> int:
        if int(value) < 20:
            raise SendFailed("no leader", definite=True)
        return append(log, value)

    log = LogInMemory()
    log.append = refuse
    verdict = await judged(tmp_path, log)
    assert verdict.valid is True, verdict.as_json()
    assert verdict.figures["refused"] == 20
