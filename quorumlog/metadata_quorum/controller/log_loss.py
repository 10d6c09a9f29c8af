"""Which records a broker may lack when it registers again.

A killed process lacks nothing: the system still writes what the process had written. A machine
that started anew has lost all unflushed records; a new log directory has lost everything.
Sources: KIP-966 (previous broker epoch, unclean shutdown), KIP-858 (directory ids).

# DEVIATION: In Kafka, any broker that did not close its logs may lack records.
# docs/decisions/0006-eligible-leader-replicas-keep-killed-brokers.md
# docs/decisions/0018-a-registration-shows-what-may-have-been-lost.md
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image.model import BrokerImage, PartitionImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.identifiers import BrokerId

NAMES_MAX: Final = 10  # of partitions, in one line


class LogLoss(Enum):
    """Which records a new process may lack of those that its broker held before."""

    NOTHING = "the same log directory, and the machine ran on or the logs had been closed"
    UNFLUSHED = "its machine has started anew, and its logs had not been closed"
    EVERYTHING = "its log directory is another one than before"


_SEVERITY: Final = (LogLoss.NOTHING, LogLoss.UNFLUSHED, LogLoss.EVERYTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Which records each replica of a broker may lack.

    everywhere: at least so much is lost of each.
    unassigned: of those whose log directory the metadata does not know.
    usable: the directories that the broker can use; None: it has one, as before.
    elsewhere: of those that are in another directory than these.
    """

    everywhere: LogLoss = LogLoss.NOTHING
    unassigned: LogLoss = LogLoss.NOTHING
    usable: frozenset[str] | None = None
    elsewhere: LogLoss = LogLoss.NOTHING

    def of(self, partition: PartitionImage, broker_id: BrokerId) -> LogLoss:
        """Return which records the broker's replica may lack."""
        directory = partition.directory_of(broker_id)
        loss = self.unassigned
        if directory is not None:
            is_usable = self.usable is None or directory in self.usable
            loss = LogLoss.NOTHING if is_usable else self.elsewhere
        return max(loss, self.everywhere, key=_SEVERITY.index)

    @property
    def worst(self) -> LogLoss:
        """Return the worst that a replica may have suffered, so far as the registration shows."""
        return max(self.everywhere, self.unassigned, key=_SEVERITY.index)

    @property
    def may_be_some(self) -> bool:
        """Whether replicas may lack something."""
        return {self.everywhere, self.unassigned, self.elsewhere} != {LogLoss.NOTHING}


NO_LOSS: Final = Losses()
ALL_LOST: Final = Losses(everywhere=LogLoss.EVERYTHING)
NOT_FLUSHED: Final = Losses(everywhere=LogLoss.UNFLUSHED)


def losses_since(broker: BrokerImage | None, request: BrokerRegistration) -> Losses:
    """Compare a registration with the one that is in force, directory by directory.

    A directory that cannot be used may come back with what was flushed. A directory that is not
    there, while all that the broker was given can be used, was replaced. Where it is not known in
    which directory a replica was, it counts as lost with each directory that is missing.
    """
    if broker is None:
        return ALL_LOST
    usable = frozenset(request.log_dirs or (request.directory_id,))
    is_missing = not broker.directories <= usable
    everything = LogLoss.EVERYTHING
    return Losses(
        everywhere=loss_of_machine(broker, request),
        unassigned=everything if is_missing else LogLoss.NOTHING,
        usable=usable,
        elsewhere=LogLoss.UNFLUSHED if request.has_offline_dirs else everything,
    )


def is_total(broker: BrokerImage | None, losses: Losses) -> bool:
    """Tell whether no replica of the broker has all that it had."""
    if broker is None or losses.everywhere is not LogLoss.NOTHING:
        return True
    usable = losses.usable or frozenset()
    return bool(broker.directories) and not broker.directories & usable


def loss_of_machine(broker: BrokerImage, request: BrokerRegistration) -> LogLoss:
    """Tell what a new start of the machine has taken from all logs of a broker."""
    has_rebooted = broker.boot_id != request.boot_id and None not in {
        broker.boot_id,
        request.boot_id,
    }
    was_closed = request.previous_broker_epoch == broker.broker_epoch
    return LogLoss.UNFLUSHED if has_rebooted and not was_closed else LogLoss.NOTHING


def unclean_elections(cluster: ClusterReplay, decided: Iterable[MetadataRecord]) -> Iterator[str]:
    """Yield what an operator must know of the leaders that are elected uncleanly."""
    for record in decided:
        if isinstance(record, PartitionChange) and record.is_recovering:
            name = cluster.topic_name(record.topic_id)
            yield (
                f"UNCLEAN ELECTION: broker {record.leader} leads {name}-{record.partition_id} from "
                "now on. It may lack acknowledged records: those are lost"
            )


def remark_on(broker: BrokerImage, loss: LogLoss, held_alone: Sequence[str]) -> str | None:
    """Return what an operator must know of a loss, if there is something.

    `held_alone`: the partitions that no other broker may lead.
    """
    if loss is LogLoss.NOTHING:
        return None
    reason = loss.value
    if loss is LogLoss.EVERYTHING and broker.log_dirs:
        reason = "one of its log directories is another one than before, or cannot be used"
    remark = f"broker {broker.broker_id} may lack acknowledged records: {reason}. "
    remark += "It is out of every ISR and ELR until it has caught up"
    if not held_alone:
        return remark
    names = ", ".join(held_alone[:NAMES_MAX])
    if len(held_alone) > NAMES_MAX:
        names += f" and {len(held_alone) - NAMES_MAX} more"
    if loss is LogLoss.EVERYTHING:
        return f"{remark}. No other broker held all of {names}: THEY HAVE NO LEADER FROM NOW ON"
    return f"{remark}. It may still lead those that no other broker held all of: {names}"
