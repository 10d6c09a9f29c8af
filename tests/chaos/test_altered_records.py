"""A broker that changes the key, the headers or the time of a record is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.drivers.driver import Record
from quorumlog.chaos.history import checksum_of, read_history
from quorumlog.chaos.history.parquet import write_operations
from quorumlog.chaos.history.schema import OPERATIONS
from tests.support.chaos.carried_out import carried_out
from tests.support.chaos.group_in_memory import GroupInMemory
from tests.support.chaos.hand_made_histories import History, found
from tests.support.chaos.keys_in_memory import KeysInMemory
from tests.support.chaos.log_in_memory import LogInMemory
from tests.support.chaos.offsets_in_memory import OffsetsInMemory

SENDS = 60
Alter = Callable[[Record], Record]


def drops_the_headers(record: Record) -> Record:
    return record._replace(headers=())


def drops_a_header(record: Record) -> Record:
    return record._replace(headers=record.headers[:1])


def swaps_the_headers(record: Record) -> Record:
    return record._replace(headers=record.headers[::-1])


def changes_the_key(record: Record) -> Record:
    return record._replace(key=b"another")


def drops_the_key(record: Record) -> Record:
    return record._replace(key=None)


def stamps_it_anew(record: Record) -> Record:
    return record._replace(timestamp_ms=record.timestamp_ms + 1)


ALTERATIONS: tuple[Alter, ...] = (
    drops_the_headers,
    drops_a_header,
    swaps_the_headers,
    changes_the_key,
    drops_the_key,
    stamps_it_anew,
)
OPTIONS: dict[str, dict[str, float | str]] = {
    "append_read": {"producers": 2, "consumers": 0, "final_readers": 1},
    "idempotent_send": {"producers": 2, "consumers": 0, "final_readers": 1},
    "list_offsets": {"rate": 400.0, "questions": 400.0, "final_readers": 1},
    "group_consume": {"producers": 2, "final_readers": 1, "max_poll_interval_ms": 200},
}


def now_and_then(alter: Alter) -> Alter:
    return lambda record: alter(record) if record.offset % 7 == 3 else record


async def judged(out: Path, workload: str, alter: Alter) -> Verdict:
    log: LogInMemory = GroupInMemory() if workload == "group_consume" else OffsetsInMemory()
    log.alter = alter
    partitions = len(log.logs)
    return await carried_out(out, workload, log, SENDS, OPTIONS[workload], partitions=partitions)


@pytest.mark.parametrize("workload", OPTIONS)
@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda one: one.__name__)
@pytest.mark.jumping_time
async def test_an_altered_record_is_found(workload: str, alter: Alter, tmp_path: Path) -> None:
    verdict = await judged(tmp_path, workload, now_and_then(alter))
    assert verdict.valid is False, verdict.as_json()
    assert found(verdict) == ["altered-record"]
    [result] = verdict.results
    sent, read = result.witnesses[0]["ops"]
    assert (sent["role"], read["role"]) == ("sent", "read")
    assert sent["value"] == read["value"]
    assert all(one["ops"][1]["offset"] % 7 == 3 for one in result.witnesses)


@pytest.mark.parametrize("workload", OPTIONS)
@pytest.mark.jumping_time
async def test_records_as_they_were_sent_are_valid(workload: str, tmp_path: Path) -> None:
    verdict = await judged(tmp_path, workload, lambda record: record)
    assert (verdict.valid, found(verdict)) == (True, []), verdict.as_json()
    rows = read_history(tmp_path).to_pylist()
    records = [
        micro
        for row in rows
        for micro in row["micro"]
        if micro["f"] in {"send", "poll", "final_poll", "group_poll"}
    ]
    assert all(micro["checksum"] for micro in records)


@pytest.mark.parametrize(
    "alter",
    [drops_the_headers, drops_a_header, swaps_the_headers, stamps_it_anew],
    ids=lambda one: one.__name__,
)
@pytest.mark.jumping_time
async def test_a_cleaner_that_alters_a_record_is_found(alter: Alter, tmp_path: Path) -> None:
    log = KeysInMemory()
    log.serve = lambda records: [
        one if one.key == b"mark" else now_and_then(alter)(one) for one in records
    ]
    options = {"rate": 400.0, "reads": 200.0, "registers": 3, "final_readers": 2}
    verdict = await carried_out(tmp_path, "compacted_register", log, 200, options, partitions=2)
    assert (verdict.valid, found(verdict)) == (False, ["altered-record"]), verdict.as_json()


def row(checksum: int, offset: int = 0) -> Any:
    """Return the row of value 1 with a checksum."""
    return "x-0", offset, 1, "", "", checksum


def sent_and_read(sent: int, *read: int, process: int = 0) -> History:
    """Send a value with a checksum, and read it with others; 0: none."""
    history = History().op(process, "send", [row(sent)])
    for reader, checksum in enumerate(read, start=1):
        history.op(reader, "poll", [row(checksum)])
    return history.op(9, "final_poll", [("x-0", 0, 1)]).op(9, "final_end", [("x-0", 1, 0)])


@pytest.mark.parametrize(
    ("sent", "read", "is_altered"),
    [
        (7, (7, 7), False),
        (7, (7, 8), True),
        (7, (0, 7), False),
        (0, (7, 8), False),
        (7, (-8, 7), True),
    ],
)
def test_checksums_are_compared_where_both_are_there(
    sent: int, read: tuple[int, ...], is_altered: bool
) -> None:
    verdict = sent_and_read(sent, *read).verdict()
    assert verdict.valid is not is_altered
    assert found(verdict) == (["altered-record"] if is_altered else [])


def test_a_value_that_was_sent_again_has_no_checksum_of_its_own() -> None:
    history = History().op(0, "send", [row(5, -1)], "info")
    history.op(1, "send", [row(7)]).op(2, "poll", [row(5)])
    verdict = history.final((0, 1), end=1).verdict()
    assert found(verdict) == []


def test_a_poll_of_unknown_outcome_alters_nothing() -> None:
    history = History().op(0, "send", [row(5)])
    history.op(2, "poll", [row(6)], "info").poll((0, 1))
    assert found(history.final((0, 1), end=1).verdict()) == []


def test_the_checksum_is_of_every_part() -> None:
    whole = checksum_of(b"k", (("a", b"1"), ("b", None)), 5)
    assert whole == checksum_of(b"k", [("a", b"1"), ("b", None)], 5)
    others = [
        checksum_of(None, (("a", b"1"), ("b", None)), 5),
        checksum_of(b"k", (("b", None), ("a", b"1")), 5),
        checksum_of(b"k", (("a", b"1"), ("b", b"")), 5),
        checksum_of(b"k", (("a", b"1"),), 5),
        checksum_of(b"k", (("a", b"1"), ("b", None)), 6),
        checksum_of(b"", (("a", b"1"), ("b", None)), 5),
    ]
    assert len({whole, *others}) == 7
    assert min(whole, *others) > 0


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    """Earlier versions wrote none: the digests of their row groups are of the other fields."""
    table = sent_and_read(0, 0).table()
    micro = table.column("micro").combine_chunks()
    flat, names = micro.flatten(), ["f", "key", "offset", "value", "text"]
    values = pa.StructArray.from_arrays([flat.field(name) for name in names], names=names)
    starts = [0]
    for length in micro.value_lengths().to_pylist():
        starts.append(starts[-1] + length)
    old = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)
    place = table.schema.get_field_index("micro")
    file = tmp_path / "history.parquet"
    write_operations(table.set_column(place, "micro", old), file, table.schema.metadata)
    again = read_history(file)
    assert again.schema.equals(OPERATIONS)
    assert again.replace_schema_metadata(None).equals(table.replace_schema_metadata(None))
    new = tmp_path / "new.parquet"
    write_operations(sent_and_read(7, 8).table(), new, table.schema.metadata)
    assert check_history(read_history(new), CHECKER).valid is False
