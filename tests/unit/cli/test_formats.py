"""Records as lines: the formats of consume, what produce reads, where a group is moved."""

import asyncio
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quorumlog.cli import formats
from quorumlog.cli.lines import read_lines
from quorumlog.cli.offset_resets import LogEnds, Move, Reset, parse_datetime_ms, parse_topics, plan
from quorumlog.cli.output import table
from quorumlog.client import ConsumerRecord, TopicPartition


def record(key: bytes | None = b"k", value: bytes | None = b"v") -> ConsumerRecord:
    return ConsumerRecord(
        topic="t",
        partition=3,
        offset=42,
        timestamp_ms=1_700_000_000_000,
        key=key,
        value=value,
        headers=(("h", b"1"), ("n", None)),
        leader_epoch=0,
    )


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%t %p %o %T\n", b"t 3 42 1700000000000\n"),
        (r"%k\t%s", b"k\tv"),
        ("%K %S", b"1 1"),
        ("%h", b"h=1,n="),
        ("100%%", b"100%"),
        ("\u00fc\\\\", "\u00fc\\".encode()),
        ("", b""),
    ],
)
def test_a_format_has_kcats_tokens(text: str, printed: bytes) -> None:
    assert formats.parse(text)(record()) == printed


@pytest.mark.parametrize("text", ["%", "%z", "\\", "\\q", "%s%"])
def test_a_token_that_is_not_there_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="; use "):
        formats.parse(text)


def test_what_is_null_is_empty_and_has_the_length_minus_one() -> None:
    nothing = record(key=None, value=None)
    assert formats.parse("%k|%s|%K|%S")(nothing) == b"||-1|-1"
    assert formats.line(":")(nothing) == b":\n"
    assert formats.line(None)(nothing) == b"\n"
    assert formats.line(":")(record()) == b"k:v\n"


def test_json_is_one_line_and_keeps_bytes_that_are_no_text() -> None:
    line = formats.json_line(record(key=None, value=b"\xff\n"))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_700_000_000_000,
        "key": None,
        "value": {"base64": "/wo="},
        "headers": [["h", "1"], ["n", None]],
    }


async def collect(fd: int) -> list[bytes]:
    return [line async for lines in read_lines(fd) for line in lines]


def piped(*pieces: bytes) -> list[bytes]:
    """Return the lines read from a pipe that is given one piece after the other."""

    async def scenario() -> list[bytes]:
        read_fd, write_fd = os.pipe()
        try:
            reading = asyncio.create_task(collect(read_fd))
            for piece in pieces:
                os.write(write_fd, piece)
                for _ in range(5):
                    await asyncio.sleep(0)
            os.close(write_fd)
            return await reading
        finally:
            os.close(read_fd)

    return asyncio.run(scenario())


def test_the_lines_do_not_depend_on_how_the_bytes_come() -> None:
    text = b"one\n\ntwo\r\n\xff\nlast"
    assert piped(text) == [b"one", b"", b"two\r", b"\xff", b"last"]
    for cut in range(len(text)):
        assert piped(text[:cut], text[cut:]) == piped(text)


def test_a_regular_file_and_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    with path.open("rb") as file:
        lines = asyncio.run(collect(file.fileno()))
    assert lines == [b"%d" % number for number in range(50_000)]
    with Path("/dev/null").open("rb") as file:
        assert asyncio.run(collect(file.fileno())) == []


async def test_waiting_for_a_line_can_be_cancelled() -> None:
    """News of bytes that have been read already must not lead to a read that blocks."""

    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"a\n")
    release = threading.Timer(20, os.close, [write_fd])  # a blocked read would end here
    release.start()
    got: list[list[bytes]] = []

    async def read() -> None:
        async for lines in read_lines(read_fd):
            got.append(lines)  # noqa: PERF401 - what came before the end is asked for

    reading = asyncio.create_task(read())
    for _ in range(10):
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert got == [[b"a"]]
    release.cancel()
    release.join()
    os.close(write_fd)
    os.close(read_fd)


def test_a_line_without_end_is_refused() -> None:
    with (
        Path("/dev/zero").open("rb") as endless,
        pytest.raises(ValueError, match="a line is longer than"),
    ):
        asyncio.run(collect(endless.fileno()))


T, U = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = {T: LogEnds(10, 100, at_time=50), U: LogEnds(0, 0)}


@pytest.mark.parametrize(
    ("reset", "after"),
    [
        (Reset(target="earliest"), [10, 0]),
        (Reset(target="latest"), [100, 0]),
        (Reset(target="offset", value=60), [60, 0]),
        (Reset(target="offset", value=5), [10, 0]),  # no such record any more
        (Reset(target="offset", value=500), [100, 0]),  # none yet
        (Reset(target="time", value=1), [50, 0]),  # nothing that young: the end
    ],
)
def test_a_target_is_within_the_log(reset: Reset, after: list[int]) -> None:
    assert plan(reset, [U, T], {T: 40}, ENDS) == [Move(T, 40, after[0]), Move(U, None, after[1])]


@pytest.mark.parametrize(("shift", "after"), [(-5, 35), (5, 45), (-500, 10), (500, 100)])
def test_a_shift_starts_from_what_is_committed(shift: int, after: int) -> None:
    reset = Reset(target="shift", value=shift)
    assert plan(reset, [T], {T: 40}, ENDS) == [Move(T, 40, after)]
    with pytest.raises(ValueError, match="t-1 has no committed offset to shift"):
        plan(reset, [T, U], {T: 40}, ENDS)


def test_a_partition_that_does_not_exist_cannot_be_moved() -> None:
    with pytest.raises(ValueError, match="t-2 does not exist"):
        plan(Reset(target="latest"), [TopicPartition("t", 2)], {}, ENDS)


def test_times_and_topics_of_a_reset_are_read() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    noon_ms = (noon - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_datetime_ms("2026-01-31T12:00:00") == noon_ms
    assert parse_datetime_ms("2026-01-31T13:00:00.5+01:00") == noon_ms + 500
    with pytest.raises(ValueError, match="'yesterday' is no date and time: write it as"):
        parse_datetime_ms("yesterday")
    assert parse_topics(["t", "u:0,12"]) == {"t": None, "u": [0, 12]}
    assert parse_topics(["t:3", "t:0,3"]) == {"t": [0, 3]}
    assert parse_topics(["t:3", "t", "t:1"]) == {"t": None}
    for wrong in ("t:", "t:a", "t:0,", "t:-1"):
        with pytest.raises(ValueError, match="write it as TOPIC or TOPIC:0,1,2"):
            parse_topics([wrong])


def test_a_table_lines_up() -> None:
    rows = [("orders", 0, 7, None), ("b", 11, -1, "x")]
    assert table(("TOPIC", "PARTITION", "LAG", "CLIENT"), rows) == [
        "TOPIC   PARTITION  LAG  CLIENT",
        "orders          0    7  -",
        "b              11   -1  x",
    ]
