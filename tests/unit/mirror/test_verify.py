"""`mirror verify` finds each difference, and none where a side has lost records legally."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client import ConsumerRecord, TopicPartition
from quorumlog.mirror import MirrorSettings
from quorumlog.mirror.core import newest
from quorumlog.mirror.core.comparison import EXTRA, MISSING, ORDER, RECORD, REPEATED, Difference
from quorumlog.mirror.verified import (
    NO_PARTITION,
    NO_TOPIC,
    Verified,
    VerifiedPartition,
    VerifiedTopic,
)
from quorumlog.mirror.verify import Verifier
from tests.support.sizes import examples

EXACTLY_ONCE: Final = MirrorSettings(source={}, target={}, topics=("t",), exactly_once=True)
AT_LEAST_ONCE: Final = replace(EXACTLY_ONCE, exactly_once=False)
SOURCE, COPY = "t", "source.t"
Records = Sequence[ConsumerRecord]


def record(number: int, offset: int | None = None, **fields: object) -> ConsumerRecord:
    """Return the record of a number, which all its fields depend on."""
    known: dict[str, object] = {
        "topic": SOURCE,
        "partition": 0,
        "offset": number if offset is None else offset,
        "timestamp_ms": 1_000 + number,
        "key": b"k%d" % number,
        "value": b"v%d" % number,
        "headers": (("h", b"%d" % number),),
        "leader_epoch": 0,
    }
    return ConsumerRecord(**{**known, **fields})  # type: ignore[arg-type]  # of the fields


def log(*numbers: int, start: int = 0, step: int = 1) -> list[ConsumerRecord]:
    """Return the records of these numbers, at offsets from `start` on."""
    return [record(number, start + step * place) for place, number in enumerate(numbers)]


class Side:
    """A reader of one partition in memory: few records at a poll, and perhaps a live log.

    `grows`: called before each request for the end, with the number of the request.
    """

    def __init__(
        self,
        records: Records,
        *,
        start: int = 0,
        end: int | None = None,
        partitions: int = 1,
        grows: Callable[[int], Records] = lambda _: (),
    ) -> None:
        self.records = [*records]
        self._start = start
        self._least_end = start if end is None else end
        self._partitions = partitions
        self._grows = grows
        self._asked = 0
        self._at = 0
        self._assigned: Sequence[TopicPartition] = ()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Begin with no position."""
        self._at, self._assigned = -1, partitions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at the offset."""
        self._at = offset

    async def poll(self, timeout_ms: float = 0) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """Return up to three records."""
        await asyncio.sleep(0)
        assert self._at >= self._start, "OFFSET_OUT_OF_RANGE"
        found = [one for one in self.records if one.offset >= self._at][:3]
        self._at = found[-1].offset + 1 if found else self._end()
        return dict.fromkeys(self._assigned, found)

    async def position(self, partition: TopicPartition) -> int:
        """Return the next offset."""
        return self._at

    def _end(self) -> int:
        return max([self._least_end, *(one.offset + 1 for one in self.records[-1:])])

    async def beginning_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the log start offset."""
        return dict.fromkeys(partitions, self._start)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end, after the log has grown."""
        self.records += self._grows(self._asked)
        self._asked += 1
        return dict.fromkeys(partitions, self._end())

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partitions."""
        return [*range(self._partitions)]


def verified(
    source: Side | Records,
    target: Side | Records,
    *,
    settings: MirrorSettings = EXACTLY_ONCE,
    is_compacted: bool = False,
    wait_s: float = 0.0,
) -> VerifiedPartition:
    """Return the result for partition 0."""

    async def compare() -> VerifiedTopic:
        ours = source if isinstance(source, Side) else Side(source)
        copies = target if isinstance(target, Side) else Side(target)
        verifier = Verifier(settings, ours, copies, wait_s)
        return await verifier.topic(SOURCE, COPY, is_compacted=is_compacted, note=lambda _: None)

    return asyncio.run(compare()).partitions[0]


def found(result: VerifiedPartition) -> tuple[str, int | None, int | None] | None:
    """Return the difference as a tuple."""
    one = result.difference
    return None if one is None else (one.field, one.upstream_offset, one.downstream_offset)


def test_equal_copies_at_other_offsets_are_valid() -> None:
    result = verified(log(*range(10), start=0, step=2), log(*range(10), start=0, step=3))
    assert (result.difference, result.compared, result.repeated) == (None, 10, 0)
    assert result.digest == verified(log(*range(10)), log(*range(10))).digest
    assert result.digest != verified(log(*range(9)), log(*range(9))).digest


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("key", {"key": None}),
        ("value", {"value": b""}),
        ("value", {"value": None}),
        ("headers", {"headers": (("h", b"5"), ("h", b"5"))}),
        ("headers", {"headers": ()}),
        ("timestamp_ms", {"timestamp_ms": 7}),
        (RECORD, {"key": b"a", "value": b"b", "timestamp_ms": 7}),
    ],
)
def test_a_changed_field_is_named(field: str, other: dict[str, object]) -> None:
    copies = log(*range(10), step=2)
    copies[5] = copies[5]._replace(**other)  # type: ignore[arg-type]  # of the fields
    for settings in (EXACTLY_ONCE, AT_LEAST_ONCE):
        result = verified(log(*range(10)), copies, settings=settings)
        assert (found(result), result.compared) == ((field, 5, 10), 5)


def test_a_record_without_a_copy_is_missing() -> None:
    assert found(verified(log(*range(10)), log(0, 1, 3, 4))) == (MISSING, 2, None)
    assert found(verified(log(*range(10)), log(*range(9)))) == (MISSING, 9, None)
    assert found(verified(log(0, 1), [])) == (MISSING, 0, None)


def test_records_in_another_order_differ() -> None:
    for settings in (EXACTLY_ONCE, AT_LEAST_ONCE):
        result = verified(log(*range(10)), log(0, 1, 3, 2, 4), settings=settings)
        assert found(result) == (MISSING, 2, None)


def test_a_record_without_a_source_is_extra() -> None:
    assert found(verified(log(0, 1), log(0, 1, 2))) == (EXTRA, None, 2)
    assert found(verified([], log(0))) == (EXTRA, None, 0)


def test_repeated_copies_are_legal_at_least_once_alone() -> None:
    copies = log(0, 1, 2, 1, 2, 2, 3, 4, 3, 4, 4)
    result = verified(log(*range(5)), copies, settings=AT_LEAST_ONCE)
    assert (result.difference, result.compared, result.repeated) == (None, 5, 6)
    assert found(verified(log(*range(5)), copies)) == (REPEATED, None, 3)


def test_records_that_retention_removed_at_the_source_are_no_difference() -> None:
    source = Side(log(*range(5, 20), start=5), start=5)
    result = verified(source, log(*range(20)))
    assert (result.difference, result.compared, result.removed_at_source) == (None, 15, 5)


def test_records_that_retention_removed_at_the_target_are_no_difference() -> None:
    target = Side(log(*range(5, 40), start=10, step=2), start=10)
    result = verified(log(*range(40)), target)
    assert (result.difference, result.compared, result.removed_at_target) == (None, 35, 5)


def test_a_side_has_lost_no_more_records_than_offsets() -> None:
    target = Side(log(*range(5, 40), start=4), start=4)
    assert found(verified(log(*range(40)), target)) == (MISSING, 0, None)
    source = Side(log(*range(5, 40), start=4), start=4)
    assert found(verified(source, log(*range(40)))) == (RECORD, 4, 0)


def test_a_side_that_has_lost_all_records_has_no_difference_and_nothing_compared() -> None:
    lost = Side([], start=7, end=7)
    result = verified(lost, log(*range(7)))
    assert (result.difference, result.compared, result.removed_at_source) == (None, 0, 7)
    result = verified(log(*range(7)), Side([], start=7, end=7))
    assert (result.difference, result.compared, result.removed_at_target) == (None, 0, 7)
    assert found(verified(log(*range(8)), Side([], start=7, end=7))) == (MISSING, 0, None)


def test_equal_records_do_not_hide_where_the_copies_begin() -> None:
    same = [record(0, offset) for offset in range(50)]
    target = Side(same[20:], start=20)
    result = verified([*same, record(1, 50)], Side([*same[20:], record(1, 50)], start=20))
    assert (result.difference, result.compared) == (None, 31)
    assert verified(same, target).difference is None


def test_a_record_may_be_repeated_whose_first_copy_the_target_has_lost() -> None:
    copies = [one._replace(offset=place) for place, one in enumerate(log(0, 1, 2, 3, 1, 2, 3, 4))]
    target = Side(copies[3:], start=3)
    result = verified(log(*range(5)), target, settings=AT_LEAST_ONCE)
    assert (result.difference, result.compared, result.repeated) == (None, 2, 3)
    assert result.removed_at_target == 3


def test_records_that_are_copied_meanwhile_are_awaited() -> None:
    late = {2: log(8, 9, start=8)}
    target = Side(log(*range(8)), grows=lambda asked: late.get(asked, ()))
    assert verified(log(*range(10)), target, wait_s=60).difference is None


def test_records_that_are_written_meanwhile_are_no_difference() -> None:
    source = Side(log(*range(8)), grows=lambda asked: log(8, 9, 10, start=8) if asked == 1 else ())
    result = verified(source, log(*range(10)))
    assert (result.difference, result.compared) == (None, 10)


def test_a_partition_without_a_copy_differs() -> None:
    async def compare() -> VerifiedTopic:
        verifier = Verifier(EXACTLY_ONCE, Side(log(0), partitions=2), Side(log(0)), 0)
        return await verifier.topic(SOURCE, COPY, is_compacted=False, note=lambda _: None)

    topic = asyncio.run(compare())
    assert (found(topic.partitions[1]), topic.valid) == ((NO_PARTITION, None, None), False)


def test_a_time_that_the_source_lacks_or_the_targets_broker_sets_is_not_compared() -> None:
    without = [one._replace(timestamp_ms=-1) for one in log(0, 1)]
    appended = [one._replace(timestamp_ms=9, timestamp_type=1) for one in log(0, 1)]
    for source, copies in ((without, log(0, 1)), (log(0, 1), appended)):
        for is_compacted in (False, True):
            result = verified(source, copies, is_compacted=is_compacted)
            assert (result.difference, result.compared) == (None, 2)


@pytest.mark.parametrize("settings", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_records_without_a_common_time_are_recognized_where_a_log_begins_or_repeats(
    settings: MirrorSettings,
) -> None:
    appended = [one._replace(timestamp_ms=9, timestamp_type=1) for one in log(*range(40))]
    without = [one._replace(timestamp_ms=-1) for one in log(*range(40))]
    for source, copies in ((log(*range(40)), appended), (without, log(*range(40)))):
        result = verified(Side(source[5:], start=5), copies, settings=settings)
        assert (result.difference, result.removed_at_source) == (None, 5)
        result = verified(source, Side(copies[5:], start=5), settings=settings)
        assert (result.difference, result.removed_at_target) == (None, 5)
        again = [*copies, *(one._replace(offset=one.offset + 20) for one in copies[20:])]
        result = verified(source, again, settings=settings)
        expected = None if settings is AT_LEAST_ONCE else (REPEATED, None, 40)
        assert (found(result), result.repeated) == (expected, 0 if expected else 20)


def test_a_repeated_copy_with_another_time_is_no_repeat() -> None:
    copies = [*log(0, 1, 2), record(1, 3, timestamp_ms=7)]
    assert found(verified(log(0, 1, 2), copies, settings=AT_LEAST_ONCE)) == (EXTRA, None, 3)


def test_a_partition_of_the_copy_alone_must_be_empty() -> None:
    for records, expected in ((log(0), (EXTRA, None, 0)), ([], None)):
        source, target = Side(records), Side(records, partitions=2)

        async def compare(source: Side = source, target: Side = target) -> VerifiedTopic:
            verifier = Verifier(EXACTLY_ONCE, source, target, 0)
            return await verifier.topic(SOURCE, COPY, is_compacted=False, note=lambda _: None)

        topic = asyncio.run(compare())
        assert [found(one) for one in topic.partitions.values()] == [None, expected]


def test_a_result_says_in_a_sentence_why_it_is_not_valid() -> None:
    assert "no such topic" in Verified(topics={}).reason
    nothing = Verified(topics={"t": VerifiedTopic(copy="source.t", partitions={})})
    assert (nothing.valid, nothing.reason) == (
        False,
        "nothing was compared: no record is on both sides",
    )
    equal = VerifiedPartition(compared=3)
    assert (Verified(topics={"t": VerifiedTopic(copy="c", partitions={0: equal})}).reason) == ""
    for field, said in (
        ("value", "t-1: the copy at offset 8 of the target has another value than the record at"),
        (MISSING, "t-1: the record at offset 7 of the source has no copy"),
        (NO_TOPIC, "t-1: the target has no topic c"),
    ):
        other = Difference(field=field, upstream_offset=7, downstream_offset=8)
        partitions = {0: equal, 1: VerifiedPartition(difference=other)}
        found_one = Verified(topics={"t": VerifiedTopic(copy="c", partitions=partitions)})
        assert found_one.reason.startswith(said)
        document = found_one.as_json()
        assert (document["valid"], document["topics"]["t"]["valid"]) == (False, False)
        assert document["difference"] == {
            "topic": "t", "partition": 1, "field": field, "upstream_offset": 7,
            "downstream_offset": 8,
        }  # fmt: skip


# --- compacted topics ---


def keyed(*pairs: tuple[int, str | None]) -> list[ConsumerRecord]:
    """Return records of these keys and values; the place is part of the timestamp."""
    return [
        record(0, place, key=b"%d" % key, value=None if value is None else value.encode())
        for place, (key, value) in enumerate(pairs)
    ]


def compacted(source: Side | Records, target: Side | Records) -> VerifiedPartition:
    """Compare compacted logs."""
    return verified(source, target, is_compacted=True)


ALL: Final = keyed((1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"), (4, None), (5, "f"))


def test_compaction_on_either_side_is_no_difference() -> None:
    for source, target in ((ALL, ALL[2:]), (ALL[2:], ALL), ([ALL[0], *ALL[2:]], ALL[1:])):
        result = compacted(source, target)
        assert (result.difference, result.compared) == (None, 5)
    without_tombstone = [one for one in ALL if one.value is not None]
    assert compacted(ALL, without_tombstone).difference is None
    assert compacted(without_tombstone, ALL).difference is None


def test_the_newest_record_of_each_key_must_be_there() -> None:
    assert found(compacted(ALL, [one for one in ALL if one.key != b"3"])) == (MISSING, 3, None)
    assert found(compacted([one for one in ALL if one.key != b"3"], ALL)) == (EXTRA, None, 3)
    stale = [*ALL[:4], *ALL[5:]]
    assert found(compacted(ALL, stale)) == ("value", 4, 1)
    other = [*ALL[:6], ALL[6]._replace(headers=())]
    assert found(compacted(ALL, other)) == ("headers", 6, 6)


def test_the_newest_records_keep_their_order() -> None:
    swapped = [*ALL[:3], ALL[4], ALL[3], *ALL[5:]]
    swapped = [one._replace(offset=place) for place, one in enumerate(swapped)]
    assert found(compacted(ALL, swapped)) == (ORDER, 3, 3)


def test_newer_records_of_a_live_compacted_topic_are_not_compared() -> None:
    newer = [one._replace(offset=one.offset + 7, value=b"new") for one in ALL]
    source = Side(ALL, grows=lambda asked: newer if asked == 1 else ())
    assert compacted(source, [*ALL, *newer]).difference is None
    again = [*ALL, *(one._replace(offset=one.offset + 7) for one in ALL[2:6])]  # copied again
    assert compacted(ALL, again).difference is None


def test_a_copy_behind_the_last_that_no_source_record_explains_is_found() -> None:
    for key, field, upstream in ((b"3", "value", 3), (b"9", EXTRA, None)):
        foreign = ALL[3]._replace(offset=7, key=key, value=b"by hand")
        assert found(compacted(ALL, [*ALL, foreign])) == (field, upstream, 7)
    stale = ALL[0]._replace(offset=7)  # a mirror that copies again, and has died in the middle
    assert found(compacted(ALL, [*ALL, stale])) == ("value", 2, 7)
    rest = [one._replace(offset=one.offset + 7) for one in ALL[1:]]
    living = Side([*ALL, stale], grows=lambda asked: rest if asked == 2 else ())
    assert verified(ALL, living, is_compacted=True, wait_s=60).difference is None


def test_more_keys_than_fit_are_compared_in_more_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "KEYS_MAX", 30)
    source = keyed(*((number % 200, str(number)) for number in range(300)))
    result = compacted(source, source[100:])
    assert (result.difference, result.compared) == (None, 200)
    changed = [*source[100:250], source[250]._replace(value=b"other"), *source[251:]]
    assert found(compacted(source, changed)) == ("value", 250, 250)


# --- any history ---


@st.composite
def copied(draw: st.DrawFn) -> tuple[Side, list[ConsumerRecord], int, bool]:
    """Return a source, legal copies at their offsets, their log start offset, and repeats."""
    content = draw(st.lists(st.integers(0, 3), max_size=60))
    history = [record(number, place) for place, number in enumerate(content)]
    repeats = draw(st.booleans())
    copies: list[ConsumerRecord] = []
    for place, one in enumerate(history):
        copies.append(one)
        if repeats and draw(st.integers(0, 9)) == 0:
            copies += history[draw(st.integers(0, place)) : place + 1]
    copies = [one._replace(offset=place) for place, one in enumerate(copies)]
    lost = draw(st.integers(0, len(history)) | st.just(0))
    source = Side(history[lost:], start=lost, end=len(history))
    lost_copies = draw(st.integers(0, min(5, len(copies))) | st.just(0)) if not lost else 0
    return source, copies, lost_copies, repeats


@given(copied())
@examples(200)
def test_every_legal_copy_is_valid(case: tuple[Side, list[ConsumerRecord], int, bool]) -> None:
    source, copies, lost, repeats = case
    target = Side(copies[lost:], start=lost, end=len(copies))
    settings = AT_LEAST_ONCE if repeats else EXACTLY_ONCE
    assert verified(source, target, settings=settings).difference is None


@given(st.integers(2, 60), st.data())
@examples(100)
def test_every_lost_changed_or_exchanged_record_is_found(size: int, data: st.DataObject) -> None:
    copies = log(*range(size))
    at = data.draw(st.integers(0, size - 2))
    match data.draw(st.sampled_from(("lost", "changed", "exchanged"))):
        case "lost":
            del copies[at]
        case "changed":
            copies[at] = copies[at]._replace(value=b"other")
        case _:
            copies = log(*range(at), at + 1, at, *range(at + 2, size))
    settings = data.draw(st.sampled_from((EXACTLY_ONCE, AT_LEAST_ONCE)))
    result = verified(log(*range(size)), copies, settings=settings)
    assert result.difference is not None
    assert result.compared == at
