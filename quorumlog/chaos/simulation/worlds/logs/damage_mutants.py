"""Logs that take damage for an intended state: see damage.py."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.log.log_directory import REFUSED_FILE, LogDirectory
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.storage_mutants import HandsOn, OtherFiles, Storage
from quorumlog.storage.core.recovery import MAX_EPOCH
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition


def _storage(broken: type[Any]) -> Storage:
    if issubclass(broken, Log):
        return Storage(log=broken)
    if issubclass(broken, LogDirectory):
        return Storage(directory=broken)
    return Storage(disk=lambda disk: cast(Disk, broken(disk)))


DAMAGE_MUTANTS: Final = Mutants(_storage)


class _FileThatIsNeverInDoubt(HandsOn):
    is_in_doubt = False


@DAMAGE_MUTANTS.breaks("records written through a lost file handle are not verified (decision 22)")
class _DoubtsNoFsync(OtherFiles):
    def other(self, path: str, file: Any) -> Any:
        return _FileThatIsNeverInDoubt(file) if path.endswith(".log") else file


@DAMAGE_MUTANTS.breaks("records that may be the last copies are set aside (decision 25)")
class _SetsTheLastRecordsAside(LogDirectory):
    def open(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        configs: Mapping[str, str],
        *,
        standing: Standing = Standing.SPARE,  # noqa: ARG002 - broken
        newest_epoch: int = MAX_EPOCH,
    ) -> tuple[Log, Offset]:
        return super().open(topic_partition, topic_id, configs, newest_epoch=newest_epoch)


@DAMAGE_MUTANTS.breaks("a refused damaged log is opened at the next start")
class _RefusesOnlyOnce(HandsOn):
    def exists(self, path: str) -> bool:
        return not path.endswith(f"/{REFUSED_FILE}") and bool(self._real.exists(path))


@DAMAGE_MUTANTS.breaks("a cleanly closed log is opened without its start (decision 25)")
class _OpensLogsWithoutTheirStart(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        log = super().open(disk, directory, settings, **{**known, "log_start_offset": None})
        log.advance_log_start_offset(min(known["log_start_offset"] or 0, log.log_end_offset))
        return log


@DAMAGE_MUTANTS.breaks("a cleanly closed log is opened without its end (decision 25)")
class _OpensLogsWithoutTheirEnd(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        return super().open(disk, directory, settings, **{**known, "known_end_offset": 0})


@DAMAGE_MUTANTS.breaks("a cleanly closed log is opened with holes (decision 25)")
class _OpensLogsWithHoles(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> "Log":
        log = super().open(disk, directory, replace(settings, cleanup_policy="compact"), **known)
        log.settings = settings
        return log
