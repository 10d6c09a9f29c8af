"""A file of leader epochs that does not fit the log that is opened."""

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.epoch_checkpoint import decode_epochs
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.segment import Segment
from tests.support.storage.batches import DIRECTORY, TINY, fill, open_log

PATH = f"{DIRECTORY}/leader-epoch-checkpoint"


def write_epochs(disk: SimDisk, epochs: str) -> None:
    """Write the file of leader epochs without a checksum."""
    content = f"0\n{len(epochs.splitlines())}\n{epochs}\n"
    write_file_durably(disk, PATH, content.encode())


def log_of_three_epochs(settings: LogSettings) -> SimDisk:
    disk = SimDisk()
    log = open_log(disk, settings)
    for leader_epoch in (1, 4, 6):
        fill(log, "abcd", leader_epoch=leader_epoch)
    log.flush()
    log.close(clean=True)
    return disk


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        *((TINY, epochs) for epochs in ("1 0", "1 0\n4 4", "1 0\n4 4\n7 8")),
        *(
            (LogSettings(), epochs)
            for epochs in (
                "1 0",
                "1 0\n6 8",
                "2 0\n4 4\n6 8",
                "1 0\n4 4\n7 8",
                "1 0\n4 4\n6 9",
                "1 0\n4 4\n6 7",
                "1 0\n2 2\n4 4\n6 8",
                "1 0\n4 4\n6 8\n7 10",
            )
        ),
    ],
)
def test_epochs_that_contradict_the_last_segment_are_rebuilt_from_the_log(
    settings: LogSettings, epochs: str
) -> None:
    """One flipped bit in a file without a checksum: a replica then judged all others wrongly."""
    disk = log_of_three_epochs(settings)
    write_epochs(disk, epochs)
    log = open_log(disk, settings, clean=True)
    assert log.epochs.entries == ((1, 0), (4, 4), (6, 8))
    log.close(clean=True)
    assert decode_epochs(read_file(disk, PATH)).entries == ((1, 0), (4, 4), (6, 8))


@pytest.mark.parametrize("epochs", ["2 0", "1 0\n6 8", "1 0\n4 4\n6 9", "1 0\n4 4\n5 8"])
def test_after_a_kill_the_segment_below_the_recovery_point_shows_it(epochs: str) -> None:
    disk = log_of_three_epochs(TINY)
    write_epochs(disk, epochs)
    log = open_log(disk, recovery_point=12)
    assert log.epochs.entries == ((1, 0), (4, 4), (6, 8))


@pytest.mark.parametrize("settings", [TINY, LogSettings()], ids=["segments", "one segment"])
@pytest.mark.parametrize("start", [0, 3, 5, 11])
def test_a_log_that_fits_its_epochs_is_not_read_when_it_is_opened(
    settings: LogSettings, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = log_of_three_epochs(settings)
    log = open_log(disk, settings, clean=True)
    log.advance_log_start_offset(start)
    log.epochs.truncate_from_start(start)
    entries = log.epochs.entries
    log.close(clean=True)
    write_epochs(disk, "\n".join(f"{epoch} {start}" for epoch, start in [*entries, (9, 12)]))
    monkeypatch.setattr(Segment, "headers", None)
    log = Log.open(disk, DIRECTORY, settings, clean=True, log_start_offset=start)
    assert log.epochs.entries == entries  # the last one was of a leader that appended nothing
