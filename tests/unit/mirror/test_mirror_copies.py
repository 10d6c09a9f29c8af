"""The state of a mirror: positions, their records, translation of groups, lost positions."""

import pytest

from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.batch import checked_record_size
from quorumlog.client.records import ConsumerRecord, OffsetAndMetadata
from quorumlog.client.settings import ProducerSettings
from quorumlog.mirror.core.copies import Copies
from quorumlog.mirror.core.group_offsets import decide_commits, translated
from quorumlog.mirror.core.lost_positions import resume_after_loss
from quorumlog.mirror.core.offset_runs import OffsetRun
from quorumlog.mirror.core.position_records import Content, RecordKey
from quorumlog.mirror.core.selection import TopicNames
from quorumlog.mirror.core.slices import slice_end
from quorumlog.mirror.core.topic_plan import TopicIds
from quorumlog.wire.codec.identifiers import TopicPartition

IDS = TopicIds(source=b"s" * 16, target=b"t" * 16)
PLACE, COPY = TopicPartition("orders", 0), TopicPartition("a.orders", 0)
NAMES = TopicNames([".*"], [], prefix="a.", alias="a", target_alias=None)


def copies() -> Copies:
    found = Copies()
    found.enter("orders", "a.orders", IDS, 2)
    return found


def advance(found: Copies, upstream: int, downstream: int, size: int) -> dict[RecordKey, Content]:
    """Copy `size` records; return the record of the position."""
    step = (PLACE, upstream + size, 4, [OffsetRun(upstream, downstream, size)])
    key, content = found.position_record(*step)
    found.advance(*step)
    return {key: content}


def restored(contents: dict[RecordKey, Content]) -> Copies:
    found = Copies()
    found.restore(contents, NAMES)
    assert found.active_partitions() == []  # until the source is known to have the topic
    found.enter("orders", "a.orders", found.topics["orders"].ids, 2)
    return found


def test_a_restarted_mirror_has_the_position_and_translates_alike() -> None:
    found, topic = copies(), dict[RecordKey, Content]()
    for number in range(40):  # a gap at the target after each poll
        topic |= advance(found, 10 * number, 11 * number, 10)
        if number == 30:
            topic |= found.unsaved_runs()
    again = restored(topic)
    assert again.topics["orders"].ids == IDS
    assert (again.of(PLACE).offset, again.of(PLACE).leader_epoch) == (400, 4)
    for offset in [*range(310), *range(340, 401)]:
        assert again.translate(PLACE, offset, 400) == found.translate(PLACE, offset, 400)
    for offset in range(310, 340):  # of these runs, neither record has been written
        early = again.translate(PLACE, offset, 400)
        assert early is not None
        assert early <= (found.translate(PLACE, offset, 400) or (COPY, 0))


def test_runs_of_an_earlier_topic_of_the_name_are_not_restored() -> None:
    found = copies()
    contents = advance(found, 0, 0, 5) | dict(found.unsaved_runs())
    found.restart("orders")
    found.enter("orders", "a.orders", TopicIds(source=b"n" * 16, target=IDS.target), 2)
    contents |= advance(found, 0, 50, 3)
    again = restored(contents)
    assert again.translate(PLACE, 2, 3) == (COPY, 52)
    assert again.translate(PLACE, 0, 3) == (COPY, 50)


def test_unsaved_runs_are_returned_once() -> None:
    found = copies()
    advance(found, 0, 0, 5)
    assert [key for key, _ in found.unsaved_runs()] == [RecordKey("runs", PLACE)]
    assert found.unsaved_runs() == []
    advance(found, 5, 5, 1)
    assert len(found.unsaved_runs()) == 1


def test_an_offset_that_the_topic_never_had_is_of_another_topic() -> None:
    found = copies()
    advance(found, 0, 0, 5)
    assert found.translate(PLACE, 5, -1) == (COPY, 5)
    assert found.translate(PLACE, 6, 5) is None
    assert found.translate(PLACE, 6, 9) == (COPY, 5)  # the mirror lags: to the end of the copies
    assert found.translate(TopicPartition("orders", 9), 0, 9) is None
    assert found.translate(TopicPartition("bills", 0), 0, 9) is None


def test_a_topic_that_is_not_copied_has_no_active_partition_and_moves_no_group() -> None:
    found = copies()
    advance(found, 0, 0, 5)
    assert found.active_partitions() == [PLACE, TopicPartition("orders", 1)]
    assert found.stop("orders", "a.orders", "full", 7.0)
    assert not found.stop("orders", "a.orders", "full")
    assert found.stopped() == {"orders": "full"}
    assert found.active_partitions() == []
    assert found.translate(PLACE, 2, 5) is None
    found.enter("orders", "a.orders", IDS, 2)
    assert found.leave([]) == ["orders"]
    assert found.leave([]) == []
    assert found.active_partitions() == []


def test_a_restored_mirror_keeps_why_a_topic_is_not_copied() -> None:
    found = copies()
    contents = advance(found, 0, 0, 5)
    found.stop("orders", "a.orders", "full", 7.0)
    found.restore(contents, NAMES)
    assert found.stopped() == {"orders": "full"}
    assert found.topics["orders"].retry_at_ms == 7.0
    assert found.of(PLACE).offset == 5


def test_groups_move_forward_and_only_without_members() -> None:
    wanted = translated(
        {PLACE: OffsetAndMetadata(7, 3, "m"), TopicPartition("bills", 0): OffsetAndMetadata(1)},
        lambda place, offset: (COPY, offset + 100) if place == PLACE else None,
    )
    assert wanted == {COPY: OffsetAndMetadata(107, -1, "m")}
    assert decide_commits("Empty", wanted, {}) == wanted
    assert decide_commits("Dead", wanted, {COPY: OffsetAndMetadata(106)}) == wanted
    assert decide_commits("Empty", wanted, {COPY: OffsetAndMetadata(107)}) == {}
    assert decide_commits("Stable", wanted, {}) == {}


@pytest.mark.parametrize(
    ("position", "log", "truncated_to", "offset", "sentence"),
    [
        (5, (9, 20), None, 9, "offsets 5 to 8 were deleted at the source"),
        (30, (9, 20), None, 20, "the source lost offsets 20 to 29"),
        (15, (9, 20), 12, 12, "the source lost offsets 12 to 14"),
        (15, (9, 20), None, 15, "offset 15 is in the log again"),
        (15, (9, 20), 40, 15, "offset 15 is in the log again"),
    ],
)
def test_a_lost_position_is_reported_with_the_lost_range(
    position: int, log: tuple[int, int], truncated_to: int | None, offset: int, sentence: str
) -> None:
    found = resume_after_loss(position, *log, truncated_to)
    assert found.offset == offset
    assert found.message.startswith(sentence)


@pytest.mark.parametrize("batch_bytes", [0, 100, 250, 10_000])
def test_slices_are_the_batches_of_a_producer(batch_bytes: int) -> None:
    sizes = [10, 90, 1, 300, 5, 5]
    records = [
        ConsumerRecord("t", 0, n, 0, None, b"v" * size, (), 0) for n, size in enumerate(sizes)
    ]
    settings = ProducerSettings(bootstrap_servers="x:1", batch_size=batch_bytes)
    accumulator = Accumulator(settings)
    for record in records:
        size = checked_record_size(None, record.value, ())
        accumulator.append(0, accumulator.queue(PLACE), (0, None, record.value, ()), size)
    begin, slices = 0, []
    while begin < len(records):
        end = slice_end(records, begin, batch_bytes)
        slices.append(end - begin)
        begin = end
    assert slices == [len(batch.records) for batch in accumulator.incomplete()]
