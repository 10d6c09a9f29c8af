"""Disks and logs with one broken rule each: flushes, recovery, truncation, damage.

A broken disk stands for code that forgets to flush, to cut or to delete: it skips this one
operation of the real disk, and passes on all others.
"""

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

from quorumlog.broker.partitions.log.log_directory import REFUSED_FILE, LogDirectory
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import HandsOn, of_every_log
from quorumlog.storage.core.append_checks import Append
from quorumlog.storage.core.recovery import MAX_EPOCH, SegmentScan
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.append_handles import AppendFile, DiskFile
from quorumlog.storage.io.batch_reader import ReadResult
from quorumlog.storage.io.checkpoints import CLEAN_SHUTDOWN_FILE
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, iterate_headers, restamp

STORAGE: Final = Mutants("storage", of_every_log)
DAMAGED_LOGS: Final = Mutants("storage", of_every_log)


# --- disks ---


class OtherFiles(HandsOn):
    """Puts something before the files that are opened to be changed."""

    def other(self, path: str, file: Any) -> Any:
        """Return the wrapper of `file`, or the file."""
        raise NotImplementedError

    def open(self, path: str, *, create: bool = False) -> DiskFile:  # noqa: D102 - see Disk
        return cast(DiskFile, self.other(path, self._real.open(path, create=create)))

    def open_to_append(  # noqa: D102 - see Disk
        self, path: str, *, create: bool = False
    ) -> AppendFile:
        return cast(AppendFile, self.other(path, self._real.open_to_append(path, create=create)))


class _FileNotFlushed(HandsOn):
    def fsync(self) -> None:
        """Claim it."""


class NotFlushed(OtherFiles):
    """Claims that some files are durable. `files`: the regular expression of their paths."""

    files: ClassVar[str]
    _renamed_in = ""

    def other(self, path: str, file: Any) -> Any:  # noqa: D102 - see OtherFiles
        is_meant = re.search(self.files, path.removesuffix(".tmp"))
        return _FileNotFlushed(file) if is_meant else file

    def rename(self, source: str, target: str) -> None:  # noqa: D102 - see Disk
        self._real.rename(source, target)
        self._renamed_in = target.rpartition("/")[0] if re.search(self.files, target) else ""

    def fsync_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        renamed_in, self._renamed_in = self._renamed_in, ""
        if path != renamed_in:
            self._real.fsync_dir(path)


@STORAGE.breaks("a vote is sent before it is durable: its file is not flushed")
class _VotesAreNotFlushed(NotFlushed):
    files = "/quorum-state$"


@STORAGE.breaks("a flush of the metadata log does not reach the disk")
class _MetadataIsNotFlushed(NotFlushed):
    files = r"/__cluster_metadata-0/.*\.log$"


@STORAGE.breaks("a checkpoint is renamed before its content is flushed (KAFKA-16541)")
class _CheckpointsAreNotFlushed(NotFlushed):
    files = "-checkpoint$"


@STORAGE.breaks("a directory's entries are never flushed")
class _NamesAreNotFlushed(HandsOn):
    def fsync_dir(self, path: str) -> None:
        """Claim it."""


class _FileFlushedWhileItHasAHandle(HandsOn):
    def fsync(self) -> None:
        if self._real.pread_cached(0, 0) is not None:
            self._real.fsync()


@STORAGE.breaks("records written through a lost file handle are never flushed")
class _LostHandlesAreNotFlushed(OtherFiles):
    def other(self, path: str, file: Any) -> Any:
        return _FileFlushedWhileItHasAHandle(file) if path.endswith(".log") else file


@STORAGE.breaks("the directory entry of a new log is not flushed before its first record")
class _NewDirectoriesAreNotNamed(HandsOn):
    _added_in = ""

    def add_dir(self, path: str) -> None:
        self._real.add_dir(path)
        self._added_in = path.rpartition("/")[0]

    def fsync_dir(self, path: str) -> None:
        added_in, self._added_in = self._added_in, ""
        if path != added_in:
            self._added_in = added_in
            self._real.fsync_dir(path)


class _FileIgnoringErrors(HandsOn):
    def fsync(self) -> None:
        with suppress(OSError):
            self._real.fsync()


@STORAGE.breaks("a failed fsync counts as done (fsyncgate)")
class _FailedFsyncsCount(OtherFiles):
    def other(self, path: str, file: Any) -> Any:
        return _FileIgnoringErrors(file) if path else file


class _FileNotCut(HandsOn):
    def truncate(self, size: int) -> None:
        """Claim it."""


@STORAGE.breaks("a truncation changes the log in memory, but not its file")
class _FilesAreNotCut(OtherFiles):
    def other(self, path: str, file: Any) -> Any:
        return _FileNotCut(file) if path.endswith(".log") else file


@STORAGE.breaks("the clean shutdown marker stays after a start (KAFKA-15375)")
class _CleanShutdownIsRemembered(HandsOn):
    def unlink(self, path: str) -> None:
        if not path.endswith(f"/{CLEAN_SHUTDOWN_FILE}"):
            self._real.unlink(path)


@STORAGE.breaks("a restart restores the producer state of truncated records")
class _SnapshotsOutliveRecords(HandsOn):
    def unlink(self, path: str) -> None:
        if not path.endswith(".snapshot"):
            self._real.unlink(path)


# --- logs ---


class _AnyBytesCount(SegmentScan):
    def _require_valid(self, chunk: memoryview, position: int, header: BatchHeader) -> None:
        pass


@STORAGE.breaks("recovery does not verify the checksums of batches")
class _RecoversWithoutChecksums(Log):
    scan = _AnyBytesCount


@STORAGE.breaks("a log is opened after a crash as if it had been closed cleanly")
class _TrustsFilesAfterCrashes(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        return super().open(disk, directory, settings, **{**known, "clean": True})


@STORAGE.breaks("recovery truncates an intact batch")
class _RecoveryCutsWholeBatches(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        log = super().open(disk, directory, settings, **known)
        if not known["clean"] and log.log_end_offset > log.log_start_offset:
            log.truncate_to(log.log_end_offset - 1)
        return log


@STORAGE.breaks("an opened log does not load its leader epochs")
class _ForgetsEpochsAtStart(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        log = super().open(disk, directory, settings, **known)
        log.epochs.clear()
        return log


@STORAGE.breaks("a truncation keeps the leader epochs of the truncated records (KAFKA-10706)")
class _KeepsEpochsOfWhatItCut(Log):
    def truncate_to(self, offset: int) -> None:
        known = self.epochs.entries
        super().truncate_to(offset)
        self.epochs.extend(known)


@STORAGE.breaks("a truncation keeps one batch too many")
class _CutsTooLittle(Log):
    def truncate_to(self, offset: int) -> None:
        kept = [header.next_offset for header in self.headers(offset)][:1]
        super().truncate_to(kept[0] if kept else offset)


@STORAGE.breaks("a truncation removes one batch too many")
class _CutsTooMuch(Log):
    def truncate_to(self, offset: int) -> None:
        super().truncate_to(max(self.log_start_offset, offset - 1))


@STORAGE.breaks("a follower appends batches with the current leader epoch instead of their own")
class _StampsCopiesAnew(Log):
    def append_as_follower(
        self, records: Buffer, headers: Any = None, *, leader_epoch: int | None = None
    ) -> Append:
        stamped = bytearray(records)
        for position, header in headers or iterate_headers(records):
            if leader_epoch is not None:
                restamp(
                    stamped, position, base_offset=header.base_offset, leader_epoch=leader_epoch
                )
        return super().append_as_follower(stamped, leader_epoch=leader_epoch)


@STORAGE.breaks("a read that starts in a new segment skips its first batch")
class _SkipsWhereSegmentsBegin(Log):
    def read(self, offset: int, **limits: Any) -> ReadResult:
        if offset in self.segment_base_offsets[1:]:
            for header in self.headers(offset):
                if header.next_offset < limits["end_offset"]:
                    return super().read(header.next_offset, **limits)
                break
        return super().read(offset, **limits)


# --- damaged logs: see worlds.logs.damage ---


class _FileThatIsNeverInDoubt(HandsOn):
    is_in_doubt = False


@DAMAGED_LOGS.breaks("records written through a lost file handle are not verified (decision 22)")
class _DoubtsNoFsync(OtherFiles):
    def other(self, path: str, file: Any) -> Any:
        return _FileThatIsNeverInDoubt(file) if path.endswith(".log") else file


@DAMAGED_LOGS.breaks("records that may be the last copies are set aside (decision 25)")
class _SetsTheLastRecordsAside(LogDirectory):
    def open(self, *opened: Any, newest_epoch: int = MAX_EPOCH, **_: Any) -> tuple[Log, Offset]:
        return super().open(*opened, newest_epoch=newest_epoch)


@DAMAGED_LOGS.breaks("a refused damaged log is opened at the next start")
class _RefusesOnlyOnce(HandsOn):
    def exists(self, path: str) -> bool:
        return not path.endswith(f"/{REFUSED_FILE}") and bool(self._real.exists(path))


@DAMAGED_LOGS.breaks("a cleanly closed log is opened without its start (decision 25)")
class _OpensLogsWithoutTheirStart(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        log = super().open(disk, directory, settings, **{**known, "log_start_offset": None})
        log.advance_log_start_offset(min(known["log_start_offset"] or 0, log.log_end_offset))
        return log


@DAMAGED_LOGS.breaks("a cleanly closed log is opened without its end (decision 25)")
class _OpensLogsWithoutTheirEnd(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        return super().open(disk, directory, settings, **{**known, "known_end_offset": 0})


@DAMAGED_LOGS.breaks("a cleanly closed log is opened with holes (decision 25)")
class _OpensLogsWithHoles(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        log = super().open(disk, directory, replace(settings, cleanup_policy="compact"), **known)
        log.settings = settings
        return log
