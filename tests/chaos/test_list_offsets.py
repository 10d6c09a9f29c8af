"""The workload list_offsets: which wrong answers about a log its check finds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.drivers.driver import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAt
from quorumlog.chaos.history import read_history
from tests.support.chaos.carried_out import carried_out
from tests.support.chaos.offsets_in_memory import OffsetsInMemory, Times, answer

SENDS = 200


async def judged(out: Path, log: OffsetsInMemory) -> Verdict:
    """Send and ask until the logs have taken all sends, read and ask everything, and check it."""
    options = {"rate": 400.0, "questions": 400.0, "final_readers": 1}
    partitions = len(log.logs)
    return await carried_out(out, "list_offsets", log, SENDS, options, partitions=partitions)


@pytest.mark.jumping_time
async def test_right_answers_are_valid(tmp_path: Path) -> None:
    verdict = await judged(tmp_path, OffsetsInMemory())
    assert verdict.valid is True, verdict.as_json()
    assert verdict.results == []
    rows = read_history(tmp_path).to_pylist()
    told = {micro["f"] for row in rows for micro in row["micro"] if "list_offsets" in row["f"]}
    assert told == {"earliest", "latest", "by_time", "max_timestamp", "found"}
    sizes = {len(row["micro"]) for row in rows if row["f"] == "send"}
    assert sizes == {5}
    times = [micro["value"] for row in rows if row["f"] == "send" for micro in row["micro"]]
    assert len(times) == len(set(times))
    assert times != sorted(times)


Answer = Callable[[OffsetsInMemory, Times, int], OffsetAt]


def too_low(log: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return OffsetAt(max(0, len(times) - 7), -1) if log.asked % 2 else answer(times, asked)


def too_low_in_the_end(log: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    is_over = sum(map(len, log.logs)) >= SENDS
    return OffsetAt(len(times) - 1, -1) if is_over else answer(times, asked)


def too_high(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return OffsetAt(len(times) + 500, -1)


def not_at_the_start(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return OffsetAt(3, -1)


def one_later(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    first = answer(times, asked).offset
    later = [at for at, time_ms in enumerate(times) if at > first and time_ms >= asked]
    return OffsetAt(later[0], times[later[0]]) if later else OffsetAt(-1, -1)


def one_before(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    offset = answer(times, asked).offset
    return OffsetAt(offset - 1, times[offset - 1]) if offset > 0 else OffsetAt(offset, -1)


def another_time(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return answer(times, asked)._replace(timestamp_ms=asked)


def none(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return OffsetAt(-1, -1)


def beyond(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return OffsetAt(len(times) + 500, asked)


def the_last(_: OffsetsInMemory, times: Times, asked: int) -> OffsetAt:
    return OffsetAt(len(times) - 1, times[-1]) if times else OffsetAt(-1, -1)


@pytest.mark.parametrize(
    ("kind", "wrong", "anomaly"),
    [
        (LATEST, too_low, "end-went-back"),
        (LATEST, too_low_in_the_end, "end-too-low"),
        (LATEST, too_high, "end-too-high"),
        (EARLIEST, not_at_the_start, "start-moved"),
        (0, one_later, "not-the-first"),
        (0, one_before, "too-old"),
        (0, another_time, "wrong-timestamp"),
        (0, none, "not-found"),
        (0, beyond, "no-such-record"),
        (MAX_TIMESTAMP, none, "not-found"),
        (MAX_TIMESTAMP, the_last, "not-the-first"),
    ],
)
@pytest.mark.jumping_time
async def test_a_wrong_answer_is_found(
    kind: int, wrong: Answer, anomaly: str, tmp_path: Path
) -> None:
    log = OffsetsInMemory()
    log.answer = lambda times, asked: (
        wrong(log, times, asked) if asked == kind or kind == 0 <= asked else answer(times, asked)
    )
    verdict = await judged(tmp_path, log)
    assert verdict.valid is False, verdict.as_json()
    assert anomaly in {result.name for result in verdict.results}, verdict.as_json()


@pytest.mark.jumping_time
async def test_a_replaced_leader_may_answer_for_a_while(tmp_path: Path) -> None:
    log = OffsetsInMemory()

    def late(times: Times, asked: int) -> OffsetAt:
        return answer(times[:5], asked) if log.asked < 40 else answer(times, asked)

    log.answer = late
    verdict = await judged(tmp_path, log)
    assert verdict.valid is True, verdict.as_json()
    assert [result.name for result in verdict.results] == ["stale-answer"]
