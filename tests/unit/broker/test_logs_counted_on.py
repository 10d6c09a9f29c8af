"""A broker that takes up its places again, and finds that a log is not whole (decision 13)."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.placement import Standing, standing_of
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.registrations import FILE_NAME, BrokerProcess
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import LacksRecords
from quorumlog.storage.io.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    uuid_to_text,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Offset, TopicId
from quorumlog.wire.codec.records import restamp
from tests.support.broker.log_directories import close_all, started, write
from tests.support.broker.one_broker import AT, BATCH, TOPIC_ID, one_broker, publish, reports_of
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image

SEGMENT = f"{0:020d}.log"
METADATA = "partition.metadata"


def end_of(directory: Path, standing: Standing, **newest_epoch: int) -> int:
    log, _ = started(directory).open(AT, TOPIC_ID, {}, standing=standing, **newest_epoch)
    log.close(clean=False)
    return log.log_end_offset


def killed(directory: Path, committed: int = 0) -> Path:
    """Leave a log of three records, as a kill does; return its directory."""
    logs = started(directory)
    log, _ = logs.open(AT, TOPIC_ID, {})
    write(log, BATCH, 3)
    logs.checkpoints.note_high_watermarks({AT: Offset(committed)})
    logs.checkpoints.write_high_watermarks()
    log.close(clean=False)
    return directory / str(AT)


def flip(path: Path, place: int = len(BATCH) * 3 // 2) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def make_last_epoch(path: Path, epoch: int) -> None:
    content = bytearray(path.read_bytes())
    restamp(content, 2 * len(BATCH), base_offset=2, leader_epoch=epoch)
    path.write_bytes(content)


def cut_a_batch(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -len(BATCH)])


def flip_topic_id(path: Path) -> None:
    flip(path, path.read_bytes().index(b"topic_id: ") + 12)


def give_away(path: Path) -> None:
    path.write_text(f"version: 0\ntopic_id: {uuid_to_text(bytes(16))}\n")


DAMAGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "a batch is damaged": (lambda log: flip(log / SEGMENT), 1),
    "zeros follow": (lambda log: (log / SEGMENT).write_bytes(BATCH + bytes(200)), 1),
    "a committed batch is gone": (lambda log: cut_a_batch(log / SEGMENT), 2),
    "it is gone": (shutil.rmtree, 0),
    "a bit of its topic id is flipped": (lambda log: flip_topic_id(log / METADATA), 0),
    "it has another topic id, without a checksum": (lambda log: give_away(log / METADATA), 0),
    "it is not known whose it is": (lambda log: (log / METADATA).write_bytes(b""), 0),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_log_that_is_counted_on_and_not_whole_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    damage, left = DAMAGES[name]
    damage(killed(tmp_path, committed=3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(LacksRecords):
        end_of(tmp_path, Standing.COUNTED_ON)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert end_of(tmp_path, Standing.SPARE) == left  # once it has left the ISR


def test_a_log_of_a_topic_that_was_made_again_is_set_aside(tmp_path: Path) -> None:
    """This broker was down so shortly that it is a member of the new topic's ISR."""
    killed(tmp_path, committed=3)
    for standing in (Standing.COUNTED_ON, Standing.UNDECIDED):
        again = TopicId(b"again" + bytes(11))
        log, high_watermark = started(tmp_path).open(AT, again, {}, standing=standing)
        assert (log.log_end_offset, high_watermark) == (0, 0)
        log.close(clean=False)


def test_a_batch_that_the_kill_has_torn_is_cut(tmp_path: Path) -> None:
    for torn in (BATCH[:30], BATCH[:-1]):
        segment = killed(tmp_path, committed=3) / SEGMENT
        segment.write_bytes(segment.read_bytes()[: 3 * len(BATCH)] + torn)
        with pytest.raises(LacksRecords):  # or damage has: the other members decide
            end_of(tmp_path, Standing.COUNTED_ON)
        assert end_of(tmp_path, Standing.UNDECIDED) == 3
        shutil.rmtree(segment.parent)


def test_the_standing_of_a_replica() -> None:
    one, three = BROKERS[0], BROKERS[2]
    alone = replace(image(NO_LEADER, 0, 0, (), replicas=(1, 2, 3)), elr=(one,))
    open_to_both = replace(alone, elr=(), last_known_elr=(one, three))
    chosen = replace(image(1, 0, 0, (1,)), is_recovering=True)
    for partition, broker_id, standing in (
        (image(1, 0, 0, (1, 2)), one, Standing.COUNTED_ON),
        (image(1, 0, 0, (1, 2)), three, Standing.SPARE),
        (image(1, 0, 0, (1,)), one, Standing.COUNTED_ON),
        (alone, one, Standing.COUNTED_ON),
        (alone, three, Standing.UNDECIDED),
        (open_to_both, one, Standing.UNDECIDED),
        (open_to_both, BROKERS[1], Standing.UNDECIDED),
        (chosen, one, Standing.CHOSEN),
        (chosen, three, Standing.SPARE),
    ):
        assert standing_of(partition, broker_id, is_new=False) is standing
        assert standing_of(partition, broker_id, is_new=True) is Standing.SPARE


def test_a_batch_of_a_leader_epoch_that_there_never_was_is_damaged(tmp_path: Path) -> None:
    """No checksum covers it: the log would be the longest one, and its leader's records refused."""
    make_last_epoch(killed(tmp_path) / SEGMENT, epoch=1 << 25)
    for standing in (Standing.COUNTED_ON, Standing.UNDECIDED):
        with pytest.raises(LacksRecords) as refused:
            end_of(tmp_path, standing, newest_epoch=7)
        assert (refused.value.last_epoch, refused.value.end_offset) == (0, 2)
    assert end_of(tmp_path, Standing.SPARE, newest_epoch=7) == 2


@pytest.mark.parametrize(("is_registered", "end"), [(True, 2), (False, 3)])
async def test_an_image_with_our_registration_shows_each_leader_that_we_followed(
    tmp_path: Path, is_registered: bool, end: int
) -> None:
    make_last_epoch(killed(tmp_path) / SEGMENT, epoch=1)
    async with one_broker(tmp_path, isr=(2,)) as replicas:
        if is_registered:
            replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        publish(replicas, image(2, 0, 1, (2,), replicas=(1, 2)))
        assert replicas.drivers[AT].log.log_end_offset == end


def damaged_log(directory: Path) -> tuple[Path, bytes]:
    """Leave a log of three committed records, one damaged; return its segment and the bytes."""
    segment = killed(directory, committed=3) / SEGMENT
    flip(segment)
    return segment, segment.read_bytes()


def undecided(*possible: BrokerId) -> PartitionImage:
    """Nobody leads, and these logs may have all that was committed."""
    return replace(image(NO_LEADER, 1, 1, (), replicas=(1, 2)), last_known_elr=possible)


@asynccontextmanager
async def member(directory: Path) -> AsyncIterator[Replicas]:
    """Run broker 1, a registered member of the ISR."""
    async with one_broker(directory, isr=(1, 2)) as replicas:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        yield replicas


async def test_a_broker_reports_the_log_and_opens_it_out_of_the_isr(tmp_path: Path) -> None:
    segment, content = damaged_log(tmp_path)
    async with member(tmp_path) as replicas:
        publish(replicas, image(1, 0, 0, (1, 2), replicas=(1, 2)))
        [report] = await reports_of(replicas)
        assert (report.last_epoch, report.log_end_offset, report.is_whole) == (0, 1, False)
        assert not replicas.may_lead.is_set()
        assert not replicas.drivers
        assert segment.read_bytes() == content
        publish(replicas, image(2, 1, 1, (2,), replicas=(1, 2)))
        assert replicas.may_lead.is_set()
        assert replicas.drivers[AT].log.log_end_offset == 1


async def test_a_damaged_log_that_may_be_the_best_stays_until_it_is_chosen(tmp_path: Path) -> None:
    segment, content = damaged_log(tmp_path)
    async with member(tmp_path) as replicas:
        publish(replicas, undecided(*BROKERS[:2]))
        assert replicas.may_lead.is_set()  # the others
        [report] = (await reports_of(replicas))[-1:]
        assert (report.log_end_offset, report.is_whole) == (1, False)
        assert segment.read_bytes() == content
        publish(replicas, replace(image(1, 2, 2, (1,), replicas=(1, 2)), is_recovering=True))
        assert replicas.drivers[AT].log.log_end_offset == 1


async def test_a_damaged_log_stays_while_members_have_not_shown_theirs(tmp_path: Path) -> None:
    """The log of the last member may be damaged as well, and then this one counts again."""
    segment, content = damaged_log(tmp_path)
    async with member(tmp_path) as replicas:
        waiting = replace(image(NO_LEADER, 0, 0, (), replicas=(1, 2)), elr=BROKERS[:2])
        publish(replicas, waiting)
        publish(replicas, replace(waiting, elr=BROKERS[1:2], last_known_elr=BROKERS[:1]))
        assert replicas.may_lead.is_set()  # the others
        publish(replicas, undecided(*BROKERS[:2]))
        reports = await reports_of(replicas)
        assert {(one.log_end_offset, one.is_whole) for one in reports} == {(1, False)}
        assert not replicas.drivers
        assert segment.read_bytes() == content
        publish(replicas, image(2, 2, 2, (2,), replicas=(1, 2)))
        assert replicas.drivers[AT].log.log_end_offset == 1


async def test_a_torn_log_is_whole_once_no_other_one_is_known_to_be_better(tmp_path: Path) -> None:
    segment = killed(tmp_path, committed=3) / SEGMENT
    segment.write_bytes(segment.read_bytes() + BATCH[:-1])
    async with member(tmp_path) as replicas:
        publish(replicas, image(1, 0, 0, (1,), replicas=(1, 2)))
        [report] = await reports_of(replicas)
        assert (report.log_end_offset, report.is_whole) == (3, False)
        publish(replicas, undecided(BROKERS[0]))
        report = (await reports_of(replicas))[-1]
        assert (report.log_end_offset, report.is_whole) == (3, True)


async def test_a_log_that_is_open_is_reported_when_it_may_decide(tmp_path: Path) -> None:
    killed(tmp_path, committed=3)
    async with member(tmp_path) as replicas:
        publish(replicas, image(1, 0, 0, (1, 2), replicas=(1, 2)))
        assert await reports_of(replicas) == []
        publish(replicas, undecided())
        [report] = await reports_of(replicas)
        assert (report.last_epoch, report.log_end_offset, report.is_whole) == (0, 3, True)


async def test_a_report_waits_for_the_registration_and_leaves_with_it(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        publish(replicas, undecided())
        assert await reports_of(replicas) == []
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        assert len(await reports_of(replicas)) == 1


async def test_a_log_that_is_not_here_yet_is_not_reported(tmp_path: Path) -> None:
    async with member(tmp_path) as replicas:
        publish(replicas, undecided())
        reported, epoch = replicas._replicas.reported, ALL_ALIVE[BROKERS[0]].broker_epoch
        assert reported.report_of(AT, replicas.image, epoch) is not None
        replicas.drivers.pop(AT)
        assert reported.report_of(AT, replicas.image, epoch) is None


def test_what_a_loss_of_power_has_taken_is_no_damage(tmp_path: Path) -> None:
    flip(killed(tmp_path, committed=3) / SEGMENT)
    logs = started(tmp_path)
    logs.registrations.may_have_lost_power = True
    log, _ = logs.open(AT, TOPIC_ID, {}, standing=Standing.UNDECIDED)
    log.close(clean=False)
    assert log.log_end_offset == 1


def registered(directory: Path, number: int) -> LogDirectory:
    """Start as a process that registers, and whose logs are all open then."""
    logs = LogDirectory(RealDisk(), str(directory), LogSettings())
    logs.start(BrokerProcess(incarnation_id=f"process {number}", boot_id="boot"))
    return logs


def confirmed(directory: Path, number: int) -> LogDirectory:
    logs = registered(directory, number)
    logs.checkpoints.note_all_open()
    logs.registrations.confirm()
    return logs


def counted_on(directory: Path, number: int) -> tuple[int, int]:
    """Open the log as a process that registers; return its end and high watermark."""
    logs = registered(directory, number)
    log, high_watermark = logs.open(AT, TOPIC_ID, {}, standing=Standing.COUNTED_ON)
    log.close(clean=False)
    return log.log_end_offset, high_watermark


def stopped(directory: Path, records: int = 3) -> Path:
    """Leave a log, as an orderly stop does; return its directory."""
    logs = confirmed(directory, 0)
    log, _ = logs.open(AT, TOPIC_ID, {})
    write(log, BATCH, records)
    close_all(logs, {AT: log}, {AT: Offset(records)}, 1)
    return directory / str(AT)


TWO_DAMAGES: dict[str, tuple[str, ...]] = {
    "cut, and nothing says where it was closed": (f"{AT}/{SEGMENT}", RECOVERY_POINT_FILE),
    "cut, and nothing says what was committed": (f"{AT}/{SEGMENT}", REPLICATION_FILE),
    "cut, and neither": (f"{AT}/{SEGMENT}", RECOVERY_POINT_FILE, REPLICATION_FILE),
    "gone, and nothing says what was committed": (str(AT), REPLICATION_FILE),
    "gone": (str(AT),),
    "all are gone": (str(AT), RECOVERY_POINT_FILE, REPLICATION_FILE, LOG_START_FILE),
}


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("name", TWO_DAMAGES)
def test_two_damages_do_not_hide_each_other(tmp_path: Path, name: str, is_killed: bool) -> None:
    segment = stopped(tmp_path) / SEGMENT
    if is_killed:
        (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    for damaged in TWO_DAMAGES[name]:
        if damaged == str(AT):
            shutil.rmtree(tmp_path / damaged)
        elif damaged.endswith(SEGMENT):
            cut_a_batch(segment)
        else:
            (tmp_path / damaged).unlink()
    for number in (1, 2):  # the one before it ended before its logs were open
        logs = registered(tmp_path, number)
        logs.checkpoints.write_high_watermarks()  # as it does every few seconds
        with pytest.raises(LacksRecords):
            logs.open(AT, TOPIC_ID, {}, standing=Standing.COUNTED_ON)


def test_a_recovery_point_that_is_too_low_hides_no_loss(tmp_path: Path) -> None:
    cut_a_batch(stopped(tmp_path) / SEGMENT)
    (tmp_path / RECOVERY_POINT_FILE).write_text(f"0\n1\n{AT.topic} {AT.partition} 1\n")
    with pytest.raises(LacksRecords):
        counted_on(tmp_path, 1)


def test_high_watermarks_that_are_lost_cost_a_place_and_no_more(tmp_path: Path) -> None:
    """Of the replicas that are left the longest leads; a log that was closed has its end."""
    stopped(tmp_path)
    (tmp_path / REPLICATION_FILE).unlink()
    assert counted_on(tmp_path, 1) == (3, 0)
    logs = registered(tmp_path, 2)  # after a kill
    with pytest.raises(LacksRecords, match="replication-offset-checkpoint"):
        logs.open(AT, TOPIC_ID, {}, standing=Standing.COUNTED_ON)
    log, _ = logs.open(AT, TOPIC_ID, {}, standing=Standing.UNDECIDED)
    assert log.log_end_offset == 3
    logs.checkpoints.note_all_open()
    logs.registrations.confirm()
    log.close(clean=False)
    assert counted_on(tmp_path, 3)[0] == 3


def test_a_log_that_was_closed_without_records_needs_no_high_watermark(tmp_path: Path) -> None:
    stopped(tmp_path, records=0)
    (tmp_path / REPLICATION_FILE).unlink()
    assert counted_on(tmp_path, 1)[0] == 0


def test_a_kill_before_the_first_checkpoint_raises_no_alarm(tmp_path: Path) -> None:
    for number in range(3):
        log, _ = confirmed(tmp_path, number).open(AT, TOPIC_ID, {}, standing=Standing.COUNTED_ON)
        log.append_as_leader(BATCH, leader_epoch=0, wall_ms=0)
        log.close(clean=False)
        assert log.log_end_offset == number + 1


@pytest.mark.parametrize("registrations", [True, False])
def test_a_former_releases_directory_raises_no_alarm(tmp_path: Path, registrations: bool) -> None:
    """It has the file of high watermarks, or it names no process."""
    stopped(tmp_path)
    (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    (tmp_path / (FILE_NAME if not registrations else RECOVERY_POINT_FILE)).unlink()
    if not registrations:
        (tmp_path / REPLICATION_FILE).unlink()
    assert counted_on(tmp_path, 1)[0] == 3
