"""The file of the vote: torn at any byte, damaged at any byte, and cut short by any operation."""

import errno
import itertools
import random
from dataclasses import replace
from functools import partial

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.log import election_store
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.storage.errors import CorruptCheckpoint, StorageError
from quorumlog.storage.io.disk import read_file
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.sizes import tries
from tests.support.storage.power import Nothing, PowerLoss, at, operations_of

DIRECTORY = "/data"
PATH = f"{DIRECTORY}/quorum-state"
VOTERS = (BrokerId(1), BrokerId(2), BrokerId(3))


def vote(number: int) -> Election:
    """Each differs in every field that may differ."""
    return Election(
        leader_epoch=Epoch(number),
        voted_id=BrokerId(number % 3 + 1),
        voted_directory_id=f"directory-{number % 2}",
        was_voter=number % 2 == 0,
        voters=VOTERS,
    )


def saved(count: int, disk: SimDisk | None = None) -> SimDisk:
    """A disk with the votes 1 to count."""
    disk = disk or SimDisk()
    disk.mkdir(DIRECTORY)
    store = ElectionStore(disk, DIRECTORY, VOTERS)
    for number in range(1, count + 1):
        store.save(vote(number))
    return disk


def loaded(disk: SimDisk) -> Election:
    return ElectionStore(disk, DIRECTORY, VOTERS).load()


def with_content(content: bytes) -> SimDisk:
    disk = SimDisk()
    disk.mkdir(DIRECTORY)
    disk.open(PATH, create=True).append([content])
    return disk


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rest", ["before", "zeros", "garbage"])
def test_a_save_that_is_torn_at_any_byte_is_made_or_not_made(count: int, rest: str) -> None:
    before = read_file(saved(count), PATH)
    after = read_file(saved(count + 1), PATH)
    assert len(before) == len(after)
    changed = [at for at in range(len(after)) if before[at] != after[at]]
    rng = random.Random(count)
    outcomes = set()
    for cut in range(changed[0], changed[-1] + 2):
        end = changed[-1] + 1
        others = {"zeros": bytes(end - cut), "garbage": rng.randbytes(end - cut)}
        torn = after[:cut] + others.get(rest, before[cut:end]) + before[end:]
        found = loaded(with_content(torn))
        assert found in {vote(count), vote(count + 1)}
        outcomes.add(found)
    assert len(outcomes) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_damaged_byte_costs_no_vote(count: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger=election_store.__name__)  # whatever ran before
    whole = read_file(saved(count), PATH)
    for place in range(0, len(whole), 4 // tries(4)):
        for bit in (1, 2, 0x20, 0x80):
            caplog.clear()
            damaged = bytearray(whole)
            damaged[place] ^= bit
            assert loaded(with_content(bytes(damaged))) == vote(count), (place, bit)
            assert "1 of 4 rows of quorum-state are damaged" in caplog.text
    caplog.clear()
    assert loaded(with_content(whole)) == vote(count)
    assert not caplog.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_file_that_is_cut_short_or_lost_its_rows_is_refused(count: int) -> None:
    whole = read_file(saved(count), PATH)
    for size in range(len(whole)):
        with pytest.raises(CorruptCheckpoint, match="Move this file away"):
            loaded(with_content(whole[:size]))
    with pytest.raises(CorruptCheckpoint, match="no row has the checksum"):
        loaded(with_content(whole.replace(b'"votedId": ', b'"votedId":  ')[: len(whole)]))


def test_the_first_save_after_damage_makes_all_rows_whole(caplog: pytest.LogCaptureFixture) -> None:
    damaged = bytearray(read_file(saved(3), PATH))
    damaged[5] ^= 1
    disk = with_content(bytes(damaged))
    store = ElectionStore(disk, DIRECTORY, VOTERS)
    assert store.load() == vote(3)
    store.save(vote(4))
    caplog.clear()
    assert loaded(disk) == vote(4)
    assert not caplog.text


def test_a_save_takes_one_fsync_once_the_file_is_there() -> None:
    disk = saved(1)
    operations: list[str] = []
    store = ElectionStore(disk, DIRECTORY, VOTERS)
    store.load()
    disk.on_operation = lambda operation, _: operations.append(operation)
    for number in range(2, 6):
        operations.clear()
        store.save(vote(number))
        assert [one for one in operations if "fsync" in one] == ["fsync"]
    disk.on_operation = None
    many = tuple(map(BrokerId, range(1, 60)))  # a row has no room for them
    for number in (6, 7, 8):
        ElectionStore(disk, DIRECTORY, many).save(replace(vote(number), voters=many))
        assert loaded(disk) == replace(vote(number), voters=many)


@pytest.mark.parametrize("operation", ["append", "fsync", "open"])
def test_a_save_that_fails_is_not_there_after_a_start(operation: str) -> None:
    disk = saved(2)
    store = ElectionStore(disk, DIRECTORY, VOTERS)
    store.load()

    def fail_once(given: str, path: str) -> None:
        if given == operation:
            disk.on_operation = None
            raise OSError(errno.EIO, "simulated", path)

    disk.on_operation = fail_once
    with pytest.raises(StorageError, match="cannot write /data/quorum-state"):
        store.save(vote(3))
    disk.kill()  # the page cache stays
    assert loaded(disk) == vote(2)
    again = ElectionStore(disk, DIRECTORY, VOTERS)
    again.load()
    again.save(vote(4))
    assert loaded(disk) == vote(4)


def test_a_vote_that_was_loaded_after_a_kill_at_any_operation_survives_power_loss() -> None:
    """The system still has what the process wrote; a start may act on that vote."""
    loads = set()
    for number in range(1, operations_of(partial(saved, 2)) + 1):
        disk = SimDisk(on_operation=at(number))
        with pytest.raises(PowerLoss):
            saved(2, disk)
        disk.on_operation = None
        disk.kill()
        disk.mkdir(DIRECTORY)
        found = loaded(disk)
        disk.crash(Nothing())
        assert loaded(disk) == found
        loads.add(found.leader_epoch)
    assert len(loads) == 3


@pytest.mark.parametrize("seed", range(tries(40)))
def test_power_loss_at_any_operation_keeps_the_last_vote_that_was_saved(seed: int) -> None:
    rng = random.Random(seed)
    for operations in itertools.count(1):
        disk, last = SimDisk(), 0
        disk.mkdir(DIRECTORY)
        disk.on_operation = at(operations)
        is_whole = False
        try:
            for _life in range(2):
                store = ElectionStore(disk, DIRECTORY, VOTERS)
                found = store.load()
                assert found.leader_epoch == last
                for _ in range(3):
                    store.save(vote(last + 1))
                    last += 1
            is_whole = True
        except PowerLoss:
            pass
        disk.on_operation = None
        disk.crash(rng)
        found = loaded(disk)
        assert found in {vote(last), vote(last + 1)} or (last == 0 and found.is_new)
        disk.crash(rng)
        assert loaded(disk) == found  # what a start has seen stays
        if is_whole:
            break
