"""The active controller: the entry to all of its decisions, and its only state.

The `decide` methods change no state of the log; `apply` is the only mutator. The driver applies at
append, and answers at commit. When the node is deposed, the driver drops the controller with all
uncommitted changes. A new controller starts from the committed image (KIP-631). Liveness
(`Sessions`) is soft state, renewed by every heartbeat and registration.
"""

from collections.abc import Callable
from typing import Final, assert_never

from quorumlog.metadata_quorum.controller.assignments import Assignments
from quorumlog.metadata_quorum.controller.brokers import (
    BrokerState,
    Sessions,
    active_brokers,
    broker_epoch_error,
    next_state,
    registration_refusal,
    state_of,
)
from quorumlog.metadata_quorum.controller.config_changes import decide_topic_configs
from quorumlog.metadata_quorum.controller.growth import GrowthDecisions
from quorumlog.metadata_quorum.controller.log_loss import loss_since, remark_on
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.metadata_quorum.controller.producer_ids import decide_producer_ids
from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    AlterPartitions,
    AlterTopicConfigs,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    Decision,
    DeleteTopics,
    ElectLeaders,
    FindTopics,
    UserRequest,
)
from quorumlog.metadata_quorum.controller.topics import TopicDecisions
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image.model import BrokerImage, ClusterImage
from quorumlog.metadata_quorum.image.records import (
    BrokerRegistrationChange,
    MetadataRecord,
    RegisterBroker,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset


class Controller:
    """What the active controller knows and decides.

    Invariants (beside those of ClusterReplay, which it applies its records to):
      1. A fenced broker leads nothing and is in no ISR.
      2. Every registered broker has a session, so that its silence is noticed (KAFKA-18138).
    """

    def __init__(
        self,
        image: ClusterImage,
        settings: ControllerSettings,
        *,
        random_bytes: Callable[[int], bytes],
        now_ms: int,
    ) -> None:
        """Start from `image`: all that is committed, and nothing else is in the log."""
        self.cluster: Final = ClusterReplay(image)
        self.sessions: Final = Sessions(session_timeout_ms=settings.broker_session_timeout_ms)
        self._partitions: Final = PartitionDecisions(self.cluster)
        assignments = Assignments(self.cluster, random_bytes)
        self._topics: Final = TopicDecisions(self.cluster, settings, assignments, random_bytes)
        self._growth: Final = GrowthDecisions(self.cluster, assignments)
        self.touch_all(now_ms)

    def apply(self, offset: Offset, record: MetadataRecord) -> None:
        """Apply a record that was appended at `offset`."""
        self.cluster.apply(offset, record)

    def touch_all(self, now_ms: int) -> None:
        """Start a new session for every broker: this controller has just taken over."""
        for broker_id in self.cluster.brokers:
            self.sessions.touch(broker_id, now_ms)

    def renew_all(self, now_ms: int) -> None:
        """Renew every session, because this process was not running; within a limit."""
        for broker_id in self.cluster.brokers:
            self.sessions.renew(broker_id, now_ms)

    def touch(self, heartbeat: BrokerHeartbeat, now_ms: int) -> None:
        """Note a heartbeat as it arrives, however long its turn takes to come (KAFKA-15019)."""
        error_code = broker_epoch_error(self.cluster, heartbeat.broker_id, heartbeat.broker_epoch)
        if error_code is ErrorCode.NONE:
            self.sessions.touch(heartbeat.broker_id, now_ms, heartbeat.metadata_offset)

    def decide(
        self, request: ControllerRequest, *, now_ms: int, base_offset: Offset
    ) -> Decision[object]:
        """Decide a request. `base_offset`: where its first record would be appended."""
        match request:
            case BrokerRegistration():
                return self._decide_registration(request, now_ms, base_offset)
            case BrokerHeartbeat():
                return self._decide_heartbeat(request, now_ms, base_offset)
            case AlterPartitions():
                return self._partitions.decide_alter(request)
            case AllocateProducerIds():
                return decide_producer_ids(self.cluster, request)
            case _:
                return self._decide_for_user(request)

    def _decide_for_user(self, request: UserRequest) -> Decision[object]:
        match request:
            case CreateTopics():
                return self._topics.decide_create(request)
            case FindTopics():
                return self._topics.decide_find(request)
            case DeleteTopics():
                return self._topics.decide_delete(request)
            case CreatePartitions():
                return self._growth.decide_create_partitions(request)
            case AlterTopicConfigs():
                return decide_topic_configs(self.cluster, request)
            case ElectLeaders():
                return self._partitions.decide_requested(request)
            case _:
                assert_never(request)

    def decide_activation(self) -> Decision[None]:
        """Elect leaders for partitions without one, in case the last decision is half written."""
        elections = self._partitions.decide_elections(frozenset())
        return Decision(response=None, records=tuple(elections))

    def decide_expiry(self, now_ms: int) -> Decision[BrokerId | None]:
        """Fence the broker whose session ended first, if one did.

        One at a time: the next decision starts from the resulting state (KAFKA-13173).
        """
        overdue = self._next_expiry()
        if overdue is None or overdue[0] > now_ms:
            return Decision(response=None)
        return self._decide_fencing(overdue[1])

    def next_expiry_ms(self) -> int | None:
        """Return when `decide_expiry` may next have something to do; None: all are fenced."""
        expiry = self._next_expiry()
        return None if expiry is None else expiry[0]

    def decide_process_died(
        self, broker_id: BrokerId, *, broker_epoch: int, now_ms: int
    ) -> Decision[BrokerId | None]:
        """Fence a broker whose process is gone, unless another one has registered since.

        Its last heartbeats may still lie in our sockets, if this process was not running. So they
        no longer count: a broker that lives after all must register again.
        """
        broker = self.cluster.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return Decision(response=None)
        self.sessions.expire(broker_id, now_ms)  # so that another process may register
        return Decision(response=None) if broker.fenced else self._decide_fencing(broker_id)

    def check_invariants(self) -> list[str]:
        """Return the rules that do not hold (for tests and simulation: it reads everything)."""
        fenced = {b.broker_id for b in self.cluster.brokers.values() if b.fenced}
        broken = [
            f"1: {name} has a fenced broker in {partition.isr}"
            for name in self.cluster.topic_names()
            for partition in self.cluster.partitions(name)
            if fenced & {partition.leader_id, *partition.isr}
        ]
        silent = [b for b in self.cluster.brokers if self.sessions.of(b) is None]
        return broken + [f"2: broker {broker_id} has no session" for broker_id in silent]

    def _next_expiry(self) -> tuple[int, BrokerId] | None:
        unfenced = (b.broker_id for b in self.cluster.brokers.values() if not b.fenced)
        return min(((self.sessions.expires_ms(b), b) for b in unfenced), default=None)

    def _decide_fencing(self, broker_id: BrokerId) -> Decision[BrokerId | None]:
        """Take the broker out of every ISR, then fence it: a half-written decision is repeated."""
        broker = self.cluster.brokers[broker_id]
        fence = BrokerRegistrationChange(
            broker_id=broker_id, broker_epoch=broker.broker_epoch, fenced=True
        )
        changes = self._partitions.decide_departure(broker_id)
        return Decision(response=broker_id, records=(*changes, fence))

    def _decide_registration(
        self, request: BrokerRegistration, now_ms: int, base_offset: Offset
    ) -> Decision[RegistrationReply]:
        is_live = self.sessions.is_live(request.broker_id, now_ms)
        refusal = registration_refusal(self.cluster.brokers, request, is_live=is_live)
        if refusal is not None:
            return Decision(response=refusal)
        broker = self.cluster.brokers.get(request.broker_id)
        self.sessions.begin(request.broker_id, now_ms)
        if broker is not None and broker.incarnation_id == request.incarnation_id:
            reply = RegistrationReply(error_code=ErrorCode.NONE, broker_epoch=broker.broker_epoch)
            return Decision(response=reply)  # the answer to the first one was lost
        # The log of a new process may be shorter than its predecessor's: it starts outside.
        loss = loss_since(broker, request)
        changes = self._partitions.decide_departure(request.broker_id, loss)
        register = RegisterBroker(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            host=request.host,
            port=request.port,
            control_address=request.control_address,
            rack=request.rack,
            directory_id=request.directory_id,
            boot_id=request.boot_id,
            min_insync_replicas=request.min_insync_replicas,
        )
        epoch = base_offset + len(changes)
        reply = RegistrationReply(error_code=ErrorCode.NONE, broker_epoch=epoch)
        held_alone = self._partitions.held_alone_by(request.broker_id)
        remark = None if broker is None else remark_on(broker, loss, held_alone)
        return Decision(response=reply, records=(*changes, register), remark=remark)

    def _decide_heartbeat(
        self, request: BrokerHeartbeat, now_ms: int, base_offset: Offset
    ) -> Decision[HeartbeatReply]:
        error_code = broker_epoch_error(self.cluster, request.broker_id, request.broker_epoch)
        if error_code is ErrorCode.NONE and self.sessions.is_expired(request.broker_id):
            error_code = ErrorCode.STALE_BROKER_EPOCH
        if error_code is not ErrorCode.NONE:
            return Decision(response=HeartbeatReply(error_code=error_code))
        self.touch(request, now_ms)
        broker = self.cluster.brokers[request.broker_id]
        before = state_of(broker)
        after = next_state(
            broker,
            request,
            has_leaderships=request.want_shut_down and self._leads_any_partition(request.broker_id),
            others_have_replayed_shutdown=self._is_shutdown_replayed(request.broker_id),
        )
        records: tuple[MetadataRecord, ...] = ()
        if after is not before:
            records = self._change_state(broker, after)
        if after is BrokerState.CONTROLLED_SHUTDOWN and before is not after:
            self._note_shutdown(request.broker_id, base_offset + len(records) - 1)
        reply = HeartbeatReply(
            error_code=ErrorCode.NONE,
            is_caught_up=request.metadata_offset >= broker.broker_epoch,
            is_fenced=after in {BrokerState.FENCED, BrokerState.SHUTDOWN_NOW},
            should_shut_down=after is BrokerState.SHUTDOWN_NOW,
        )
        return Decision(response=reply, records=records)

    def _change_state(self, broker: BrokerImage, after: BrokerState) -> tuple[MetadataRecord, ...]:
        match after:
            case BrokerState.UNFENCED:
                change = BrokerRegistrationChange(
                    broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=False
                )
                # After the change: a fenced broker leads nothing, not even for one record.
                elections = self._partitions.decide_elections(frozenset({broker.broker_id}))
                return (change, *elections)
            case BrokerState.CONTROLLED_SHUTDOWN:
                change = BrokerRegistrationChange(
                    broker_id=broker.broker_id,
                    broker_epoch=broker.broker_epoch,
                    in_controlled_shutdown=True,
                )
                return (*self._partitions.decide_departure(broker.broker_id), change)
            case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW:
                if broker.fenced:
                    return ()
                return self._decide_fencing(broker.broker_id).records
            case _:
                assert_never(after)

    def _leads_any_partition(self, broker_id: BrokerId) -> bool:
        return any(
            partition.leader_id == broker_id
            for name in self.cluster.topic_names()
            for partition in self.cluster.partitions(name)
        )

    def _note_shutdown(self, broker_id: BrokerId, offset: int) -> None:
        session = self.sessions.of(broker_id)
        if session is not None:
            session.shutdown_offset = offset

    def _is_shutdown_replayed(self, broker_id: BrokerId) -> bool:
        """Tell whether every other active broker knows that this one leads nothing any more."""
        session = self.sessions.of(broker_id)
        offset = -1 if session is None else session.shutdown_offset
        return self.sessions.least_offset(active_brokers(self.cluster)) >= offset
