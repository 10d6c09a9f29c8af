"""A broker that was killed takes up its places again, if no other broker is in service.

After a kill of all brokers, each comes back with all that it had. If it left its ISRs, as it does
while others serve, every partition would lose its members one by one, wait without a leader, and
get them back: six changes instead of one. So its registration leaves it unfenced and in its ISRs,
and it leads again what its former process led, each partition in a new leader epoch. That begins
before the registration is in the log, and the new process acts on nothing older.

It refuses a broker that may lack a record, one that was fenced or about to stop, and one beside a
broker in service, which can serve at once.

# DEVIATION: In Kafka a new process is out of every ISR until it has caught up.
# docs/decisions/0133-killed-brokers-take-up-their-places-again.md
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
from quorumlog.metadata_quorum.controller.log_loss import LogLoss, Losses
from quorumlog.metadata_quorum.controller.requests import Decision
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
    """What a process that registers has yet to lead anew."""

    incarnation_id: str
    left: deque[Place]


class Resumptions:
    """Decides which brokers take up their places. Soft state: how far each of them is."""

    def __init__(self, cluster: ClusterReplay, sessions: Sessions, *, at_once: int) -> None:
        """`at_once`: how many partitions a slice changes."""
        self._cluster: Final = cluster
        self._at_once: Final = at_once
        self._sessions: Final = sessions
        self._begun: Final[dict[BrokerId, _Begun]] = {}

    def may_resume(
        self, broker: BrokerImage | None, request: BrokerRegistration, losses: Losses
    ) -> bool:
        """Tell whether a new process may take the places of the registered one.

        It lacks nothing: its directories are those that were registered, and the system is known to
        run on since then.
        """
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        runs_on = broker.boot_id is not None and broker.boot_id == request.boot_id
        lacks_nothing = runs_on and losses.worst is LogLoss.NOTHING and not request.has_offline_dirs
        others = active_brokers(self._cluster) - {broker.broker_id}
        return lacks_nothing and not self._sessions.are_in_service(others)

    def may_open_logs(self, heartbeat: BrokerHeartbeat, now_ms: int) -> bool:
        """Tell whether a broker that took up its places keeps them while it opens its logs."""
        others = active_brokers(self._cluster) - {heartbeat.broker_id}
        return heartbeat.is_opening and self._sessions.may_open_logs(others, now_ms)

    def decide(
        self,
        request: BrokerRegistration,
        now_ms: int,
        base_offset: Offset,
        first: Sequence[MetadataRecord],
    ) -> Decision[RegistrationReply]:
        """Register a new process in the places of the former one, slice by slice.

        `first`: what is written in front of the registration.
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
        """Begin new leader epochs in some partitions; when all are done, it is not in `_begun`.

        What the broker leads since its new process asked for the first time began after the former
        one had ended: that needs no other epoch.
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
            return None  # deleted, or led by another, meanwhile
        return PartitionChange(topic_id=at.topic_id, partition_id=at.partition, leader=broker_id)
