"""Which records a broker may lack when it registers again.

A killed process lacks nothing: the system still writes what the process had written. A machine
that started anew has lost all unflushed records; a new log directory has lost everything.
Sources: KIP-966 (previous broker epoch, unclean shutdown), KIP-858 (directory ids).

# DEVIATION: In Kafka, any broker that did not close its logs may lack records.
# docs/decisions/0006-eligible-leader-replicas-keep-killed-brokers.md
# docs/decisions/0018-a-registration-shows-what-may-have-been-lost.md
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image.model import BrokerImage
from quorumlog.metadata_quorum.image.records import MetadataRecord, PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay

NAMES_MAX: Final = 10  # of partitions, in one line


class LogLoss(Enum):
    """Which records a new process may lack of those that its broker held before."""

    NOTHING = "the same log directory, and the machine ran on or the logs had been closed"
    UNFLUSHED = "its machine has started anew, and its logs had not been closed"
    EVERYTHING = "its log directory is another one than before"


def loss_since(broker: BrokerImage | None, request: BrokerRegistration) -> LogLoss:
    """Compare a registration with the one that is in force."""
    if broker is None:
        return LogLoss.EVERYTHING
    if broker.directory_id not in {None, request.directory_id}:
        return LogLoss.EVERYTHING
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
    remark = f"broker {broker.broker_id} may lack acknowledged records: {loss.value}. "
    remark += "It is out of every ISR and ELR until it has caught up"
    if not held_alone:
        return remark
    names = ", ".join(held_alone[:NAMES_MAX])
    if len(held_alone) > NAMES_MAX:
        names += f" and {len(held_alone) - NAMES_MAX} more"
    if loss is LogLoss.EVERYTHING:
        return f"{remark}. No other broker held all of {names}: THEY HAVE NO LEADER FROM NOW ON"
    return f"{remark}. It may still lead those that no other broker held all of: {names}"
