"""The records that a broker may lack when it registers again.

After a kill of the process, no record is lost: the operating system still writes its cached
writes. After a restart of the machine, all unflushed records are lost. A new log directory has
lost everything; a directory restored from a copy lacks the records written since the copy.
Sources: KIP-966 (previous broker epoch, unclean shutdown), KIP-858 (directory ids).

# DEVIATION: In Kafka, any broker that did not close its logs may lack records.
# docs/decisions/0011-eligible-leader-replicas.md
# docs/decisions/0012-registrations.md
# docs/decisions/0014-whole-logs.md
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image.model import BrokerImage, PartitionImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.identifiers import BrokerId

NAMES_MAX: Final = 10  # of partitions, in one line


class LogLoss(Enum):
    """A class of loss: the records of its broker that a new process may lack."""

    NOTHING = "same log directory; the machine did not restart, or the logs were closed"
    UNFLUSHED = "the machine restarted, or may have, and the logs were not closed"
    UNKNOWN = (
        "the log directory was copied or restored, has failed, or is of an older release, and was "
        "not closed"
    )
    DAMAGED = "the log is damaged"
    NEWER = "the log directory is older than the broker's last registration"
    EVERYTHING = "the log directory has another directory.id than before"

    @property
    def is_total(self) -> bool:
        """True if the log is no evidence of the committed records."""
        return self in {LogLoss.NEWER, LogLoss.EVERYTHING}


_SEVERITY: Final = (*LogLoss,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The records that each replica of a broker may lack.

    everywhere: the least loss of every replica.
    unassigned: the loss of replicas without a log directory in the metadata.
    by_directory: the loss of replicas in each directory that is not as its last process left it.
    usable: the directories that the broker can use; None: it has one, as before.
    elsewhere: the loss of replicas in any other directory.
    """

    everywhere: LogLoss = LogLoss.NOTHING
    unassigned: LogLoss = LogLoss.NOTHING
    by_directory: Mapping[str, LogLoss] = field(default_factory=dict)
    usable: frozenset[str] | None = None
    elsewhere: LogLoss = LogLoss.NOTHING

    def of(self, partition: PartitionImage, broker_id: BrokerId) -> LogLoss:
        """Return the loss of the broker's replica of a partition."""
        directory = partition.directory_of(broker_id)
        loss = self.unassigned
        if directory is not None:
            is_usable = self.usable is None or directory in self.usable
            loss = self.by_directory.get(directory, LogLoss.NOTHING)
            loss = loss if is_usable else self.elsewhere
        return max(loss, self.everywhere, key=_SEVERITY.index)

    @property
    def worst(self) -> LogLoss:
        """Return the worst loss of a replica that the registration shows."""
        return max(self.everywhere, self.unassigned, key=_SEVERITY.index)

    @property
    def is_partial(self) -> bool:
        """True if a replica may have lost only a part of its records."""
        losses = {self.everywhere, self.elsewhere, *self.by_directory.values()}
        return bool(losses & {LogLoss.UNFLUSHED, LogLoss.UNKNOWN})

    @property
    def may_be_some(self) -> bool:
        """True if replicas may lack records."""
        losses = {self.everywhere, self.unassigned, self.elsewhere, *self.by_directory.values()}
        return losses != {LogLoss.NOTHING}


NO_LOSS: Final = Losses()
ALL_LOST: Final = Losses(everywhere=LogLoss.EVERYTHING)
NOT_FLUSHED: Final = Losses(everywhere=LogLoss.UNFLUSHED)
FAILED: Final = Losses(everywhere=LogLoss.UNKNOWN)


def losses_since(broker: BrokerImage | None, request: BrokerRegistration) -> Losses:
    """Compare a registration with the registration in force, directory by directory.

    An unusable directory may return with its flushed records. A directory that is missing, while
    all configured directories are usable, was replaced. A replica without a directory in the
    metadata counts as lost if any directory is missing.
    """
    if broker is None:
        return ALL_LOST
    usable = frozenset(request.log_dirs or (request.directory_id,))
    is_missing = not broker.directories <= usable
    everything = LogLoss.EVERYTHING
    by_directory = dict(_losses_of_directories(broker, request))
    of_one = max(by_directory.values(), key=_SEVERITY.index, default=LogLoss.NOTHING)
    return Losses(
        everywhere=loss_of_machine(broker, request),
        unassigned=everything if is_missing else of_one,
        by_directory=by_directory,
        usable=usable,
        elsewhere=LogLoss.UNFLUSHED if request.has_offline_dirs else everything,
    )


def is_total(broker: BrokerImage | None, losses: Losses) -> bool:
    """Return whether each replica of the broker may lack records."""
    if broker is None or losses.everywhere is not LogLoss.NOTHING:
        return True
    if broker.directories <= losses.by_directory.keys():
        return True
    usable = losses.usable or frozenset()
    return bool(broker.directories) and not broker.directories & usable


def loss_of_machine(broker: BrokerImage, request: BrokerRegistration) -> LogLoss:
    """Return the loss of all logs of a broker through a restart of its machine.

    Where the system has no boot id, each start of the process may follow a restart of the machine.
    """
    runs_on = request.boot_id is not None and broker.boot_id == request.boot_id
    is_safe = runs_on or _was_closed(broker, request)
    return LogLoss.NOTHING if is_safe else LogLoss.UNFLUSHED


def _losses_of_directories(
    broker: BrokerImage, request: BrokerRegistration
) -> Iterator[tuple[str, LogLoss]]:
    """Yield the directories that changed since the registered process left them, with the loss.

    If the process closed all logs, even a copy of the directory lacks no record.
    """
    if request.incarnations is None or _was_closed(broker, request):
        return
    for directory_id, incarnations in sorted(request.incarnations.items()):
        if not incarnations:
            yield directory_id, LogLoss.UNKNOWN
        elif broker.incarnation_id not in {*incarnations, request.incarnation_id}:
            yield directory_id, LogLoss.NEWER


def _was_closed(broker: BrokerImage, request: BrokerRegistration) -> bool:
    return request.previous_broker_epoch == broker.broker_epoch


def unclean_elections(cluster: ClusterReplay, decided: Iterable[MetadataRecord]) -> Iterator[str]:
    """Yield a remark for the operator about each leader that is elected uncleanly."""
    led: dict[BrokerId | None, list[str]] = {}
    for record in decided:
        if isinstance(record, PartitionChange) and record.is_recovering:
            name = f"{cluster.topic_name(record.topic_id)}-{record.partition_id}"
            led.setdefault(record.leader, []).append(name)
    for leader, names in led.items():
        yield (
            f"UNCLEAN ELECTION: broker {leader} now leads {listed(names)}. Acknowledged records "
            "that it lacks are lost"
        )


def listed(names: Sequence[str]) -> str:
    """Return the first NAMES_MAX names, and the number of the other names."""
    shown = ", ".join(names[:NAMES_MAX])
    more = len(names) - NAMES_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def remark_on(broker: BrokerImage, loss: LogLoss, held_alone: Sequence[str]) -> str | None:
    """Return a remark for the operator about a loss; None: there is no loss.

    `held_alone`: the partitions that no other broker may lead.
    """
    if loss is LogLoss.NOTHING:
        return None
    reason = loss.value
    if loss is LogLoss.EVERYTHING and broker.log_dirs:
        reason = "one of its log directories is another one than before, or cannot be used"
    elif broker.log_dirs and loss in {LogLoss.UNKNOWN, LogLoss.NEWER}:
        reason = reason.replace("the log directory", "one of its log directories", 1)
    remark = f"broker {broker.broker_id} may lack acknowledged records: {reason}. "
    remark += "It is out of every ISR and ELR until it has caught up"
    if not held_alone:
        return remark
    names = listed(held_alone)
    if loss.is_total:
        return f"{remark}. No other broker held all of {names}: THEY HAVE NO LEADER FROM NOW ON"
    return f"{remark}. No other broker held all of {names}: the logs that are left decide who leads"
