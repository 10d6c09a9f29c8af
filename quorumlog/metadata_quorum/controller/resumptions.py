"""A killed broker resumes its leaderships and ISR memberships, if no other broker serves.

After a kill of all brokers, each returns with all its records. If each left its ISRs, as a broker
does while others serve, every partition would lose its members one by one, wait without a leader,
and get them back: six changes instead of one. So its registration leaves it unfenced and in its
ISRs, and it again leads the partitions of its former process, each in a new leader epoch. These
epochs begin before the registration is in the log; the new process acts on no older metadata.

It refuses a broker that may lack a record, a broker that was fenced or in controlled shutdown, and
any broker while another serves: that one can lead at once.

# DEVIATION: In Kafka a new process is out of every ISR until it has caught up.
# docs/decisions/0013-resuming-brokers.md
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from quorumlog.metadata_quorum.controller.brokers import (
    Sessions,
    active_brokers,
    ignored_min_isr,
    registration_record,
)
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.log_loss import LogLoss, Losses
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image.model import BrokerImage
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.records import MetadataRecord, PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset


@dataclass(frozen=True, slots=True)
class _Begun:
    """The partitions for which a registering process still needs a new leader epoch."""

    incarnation_id: str
    left: deque[Place]


class Resumptions:
    """Decides which brokers resume. Soft state: the progress of each of them."""

    def __init__(self, cluster: ClusterReplay, sessions: Sessions, *, at_once: int) -> None:
        """`at_once`: the number of partitions in a slice."""
        self._cluster: Final = cluster
        self._at_once: Final = at_once
        self._sessions: Final = sessions
        self._begun: Final[dict[BrokerId, _Begun]] = {}

    def may_resume(
        self, broker: BrokerImage | None, request: BrokerRegistration, losses: Losses
    ) -> bool:
        """Return whether a new process may take over from the registered process.

        It must lack no record: it has the registered directories, and the machine has not
        restarted since.
        """
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        runs_on = broker.boot_id is not None and broker.boot_id == request.boot_id
        lacks_nothing = runs_on and losses.worst is LogLoss.NOTHING and not request.has_offline_dirs
        others = active_brokers(self._cluster) - {broker.broker_id}
        return lacks_nothing and not self._sessions.are_in_service(others)

    def may_open_logs(self, heartbeat: BrokerHeartbeat, now_ms: int) -> bool:
        """Return whether a broker that resumed may stay unfenced while it opens its logs."""
        others = active_brokers(self._cluster) - {heartbeat.broker_id}
        return heartbeat.is_opening and self._sessions.may_open_logs(others, now_ms)

    def decide(
        self,
        request: BrokerRegistration,
        now_ms: int,
        base_offset: Offset,
        first: Sequence[MetadataRecord],
    ) -> Decision[RegistrationReply]:
        """Register a new process in the former one's ISRs and leaderships, slice by slice.

        `first`: records to write before the registration.
        """
        renewed = self._renewed(request)
        reply = RegistrationReply(error_code=ErrorCode.NONE)
        if request.broker_id in self._begun:
            return Decision(response=reply, records=renewed, goes_on=True)
        self._sessions.begin(request.broker_id, now_ms)
        epoch = base_offset + len(first) + len(renewed)
        register = replace(registration_record(request, epoch), fenced=False)
        reply = replace(reply, broker_epoch=epoch)
        remark = ignored_min_isr(self._cluster, request)
        return Decision(response=reply, records=(*first, *renewed, register), remark=remark)

    def _renewed(self, request: BrokerRegistration) -> tuple[PartitionChange, ...]:
        """Begin new leader epochs in one slice; after the last, the broker is not in `_begun`.

        Leader epochs that began after the new process's first request began after the former
        process had ended: these partitions need no new epoch.
        """
        broker_id = request.broker_id
        begun = self._begun.get(broker_id)
        if begun is None or begun.incarnation_id != request.incarnation_id:
            places = deque(self._cluster.by_broker.leading.of(broker_id))
            begun = self._begun[broker_id] = _Begun(request.incarnation_id, places)
        count = min(len(begun.left), self._at_once)
        changes = [self._led_anew(begun.left.popleft(), broker_id) for _ in range(count)]
        if not begun.left:
            del self._begun[broker_id]
        return tuple(change for change in changes if change is not None)

    def _led_anew(self, at: Place, broker_id: BrokerId) -> PartitionChange | None:
        name = self._cluster.topic_name(at.topic_id)
        partition = None if name is None else self._cluster.partition(name, at.partition)
        if partition is None or partition.leader_id != broker_id:
            return None  # meanwhile deleted, or led by another broker
        return PartitionChange(topic_id=at.topic_id, partition_id=at.partition, leader=broker_id)
