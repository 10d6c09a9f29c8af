"""compacted_register and metadata_linearizable: right clusters are valid, broken ones are found."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.drivers.driver import Record, SendFailed
from quorumlog.chaos.history import read_history
from tests.support.chaos.carried_out import carried_out
from tests.support.chaos.keys_in_memory import KeysInMemory, TopicsInMemory, append

SENDS = 200
CHANGES = 150


async def judged_registers(out: Path, log: KeysInMemory) -> Verdict:
    """Write and read until the log has taken all sends; read every register, and check it."""
    options = {"rate": 400.0, "reads": 200.0, "registers": 3, "final_readers": 2}
    partitions = len(log.logs)
    return await carried_out(out, "compacted_register", log, SENDS, options, partitions=partitions)


@pytest.mark.jumping_time
async def test_registers_of_a_sound_log_are_linearizable(tmp_path: Path) -> None:
    log = KeysInMemory()

    def sometimes_without_an_answer(records: list[Record], record: Record) -> int:
        offset = append(records, record)
        if record.key != b"mark" and int(record.value) % 9 == 4:
            raise SendFailed("NO_ANSWER", definite=False)
        return offset

    log.append = sometimes_without_an_answer
    verdict = await judged_registers(tmp_path, log)
    assert verdict.valid is True, verdict.as_json()
    rows = read_history(tmp_path).to_pylist()
    outcomes = {(row["f"], row["type"]) for row in rows}
    assert outcomes == {("write", "ok"), ("write", "info"), ("read", "ok")}
    cold = [row for row in rows if row["micro"][0]["key"].startswith("c")]
    assert {row["micro"][0]["key"] for row in rows if row not in cold} == {"r0", "r1", "r2"}
    written = Counter(row["micro"][0]["key"] for row in cold if row["f"] == "write")
    assert set(written.values()) == {1}  # each once, and read by both final readers
    assert len(written) > 3
    read = Counter(row["micro"][0]["key"] for row in cold if row["f"] == "read")
    assert read == dict.fromkeys(written, 2)


@pytest.mark.jumping_time
async def test_a_removed_record_of_a_register_that_was_written_once_is_found(
    tmp_path: Path,
) -> None:
    """A cleaner that removes the newest record of a key: a busy one is written again at once."""
    log = KeysInMemory()

    def forgets_a_cold_one(records: list[Record], record: Record) -> int:
        offset = append(records, record)
        if len(records) > 20:
            records[:] = [one for one in records if one.key != b"c1"]
        return offset

    log.append = forgets_a_cold_one
    verdict = await judged_registers(tmp_path, log)
    assert verdict.valid is False
    assert {one["key"] for one in verdict.results[0].witnesses} == {"c1"}


@pytest.mark.jumping_time
async def test_a_read_that_compaction_overtakes_tells_nothing(tmp_path: Path) -> None:
    """Every poll finds the log compacted: of what was there at the mark, nothing may be left."""
    log = KeysInMemory()
    log.serve = lambda records: sorted({record.key: record for record in records}.values())
    verdict = await judged_registers(tmp_path, log)
    assert verdict.valid is True, verdict.as_json()
    rows = read_history(tmp_path).to_pylist()
    outcomes = [row["type"] for row in rows if row["f"] == "read"]
    assert min(outcomes.count("ok"), outcomes.count("fail")) > 2


def drops_a_write(records: list[Record], record: Record) -> int:
    if record.key != b"mark" and int(record.value) % 10 == 5:
        return len(records)
    return append(records, record)


def puts_a_write_too_low(records: list[Record], record: Record) -> int:
    if record.key == b"mark" or len(records) < 20 or int(record.value) % 10 != 5:
        return append(records, record)
    old = records[-15]
    records[-15] = record._replace(offset=old.offset)
    return append(records, old)


def takes_a_refused_write(records: list[Record], record: Record) -> int:
    offset = append(records, record)
    if record.key != b"mark" and int(record.value) % 10 == 5:
        raise SendFailed("NOT_ENOUGH_REPLICAS", definite=True)
    return offset


@pytest.mark.parametrize("broken", [drops_a_write, puts_a_write_too_low, takes_a_refused_write])
@pytest.mark.jumping_time
async def test_a_log_that_is_no_register_is_found(
    broken: Callable[[list[Record], Record], int], tmp_path: Path
) -> None:
    log = KeysInMemory()
    log.append = broken
    verdict = await judged_registers(tmp_path, log)
    assert verdict.valid is False, verdict.as_json()


@pytest.mark.jumping_time
async def test_a_broker_that_serves_an_old_log_is_found(tmp_path: Path) -> None:
    log = KeysInMemory()

    def without_recent_writes(records: list[Record]) -> list[Record]:
        newest = len(records) - 8
        return [one for one in records if one.key == b"mark" or one.offset < newest]

    log.serve = without_recent_writes
    verdict = await judged_registers(tmp_path, log)
    assert verdict.valid is False, verdict.as_json()


async def judged_topics(out: Path, topics: TopicsInMemory) -> Verdict:
    """Create and delete until there were enough changes, create all once more, and check it."""
    return await carried_out(out, "metadata_linearizable", topics, CHANGES, {"rate": 300.0})


@pytest.mark.jumping_time
async def test_topics_of_a_sound_controller_are_linearizable(tmp_path: Path) -> None:
    topics, asked = TopicsInMemory(), []

    def answers(name: str) -> bool:
        asked.append(name)
        return len(asked) % 13 != 0

    topics.answers = answers
    verdict = await judged_topics(tmp_path, topics)
    assert verdict.valid is True, verdict.as_json()
    rows = read_history(tmp_path).to_pylist()
    seen = {(row["f"], row["type"], row["micro"][0]["value"]) for row in rows}
    assert seen >= {(f, "ok", done) for f in ("create", "delete") for done in (0, 1)}
    assert ("create", "info", 1) in seen
    assert len({row["micro"][0]["key"] for row in rows}) > 3


@pytest.mark.jumping_time
async def test_a_controller_that_forgets_a_change_is_found(tmp_path: Path) -> None:
    topics, asked = TopicsInMemory(), []

    def happens(name: str) -> bool:
        asked.append(name)
        return len(asked) % 10 != 0

    topics.happens = happens
    verdict = await judged_topics(tmp_path, topics)
    assert verdict.valid is False, verdict.as_json()
    assert [result.name for result in verdict.results] == ["nonlinearizable"]


@pytest.mark.jumping_time
async def test_a_change_that_was_made_and_then_refused_is_found(tmp_path: Path) -> None:
    """A broker sent it to the controller twice."""
    topics = TopicsInMemory()
    topics.sent_twice = lambda count: count % 5 == 0
    verdict = await judged_topics(tmp_path, topics)
    assert verdict.valid is False, verdict.as_json()
