"""The active controller: the entry to all of its decisions, and its state.

The `decide` methods return records; only `apply` changes the metadata. The driver applies records
when it appends them, and responds when they are committed. When the node is deposed, the driver
drops the controller with all uncommitted changes. A new controller starts from the committed image
(KIP-631). Liveness (`Sessions`) is soft state, renewed by every heartbeat and registration.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, assert_never

from quorumlog.invariants import some
from quorumlog.metadata_quorum.cluster_changes import ClusterChange
from quorumlog.metadata_quorum.controller.assignments import Assignments
from quorumlog.metadata_quorum.controller.brokers import (
    BrokerState,
    Session,
    Sessions,
    active_brokers,
    broker_epoch_error,
    ignored_min_isr,
    next_state,
    registration_record,
    registration_refusal,
    state_of,
)
from quorumlog.metadata_quorum.controller.cluster_decisions import ClusterDecisions
from quorumlog.metadata_quorum.controller.config_changes import decide_configs
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.directories import (
    decide_all_failed,
    decide_failed,
    levels_for_registration,
    newly_failed,
)
from quorumlog.metadata_quorum.controller.leader_balance import LeaderBalance
from quorumlog.metadata_quorum.controller.log_loss import is_total, losses_since, remark_on
from quorumlog.metadata_quorum.controller.log_reports import ControllerRules, LogReports
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, failure_response
from quorumlog.metadata_quorum.controller.topics import TopicDecisions
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    AssignReplicas,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    FindTopics,
    ReportLogs,
)
from quorumlog.metadata_quorum.image.features import KRAFT_FEATURE
from quorumlog.metadata_quorum.image.model import BrokerImage, ClusterImage
from quorumlog.metadata_quorum.image.records import BrokerRegistrationChange, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset


class Controller:
    """Holds the metadata with its uncommitted records, and decides requests.

    Invariants (beside those of ClusterReplay, to which it applies its records):
      1. A fenced broker leads no partition and is in no ISR.
      2. Every registered broker has a session, so that its silence is noticed (KAFKA-18138).
      3. Every replica in an ISR is in a log directory that its broker can use (KIP-858).
    """

    rules: ClassVar[ControllerRules] = ControllerRules()

    def __init__(
        self,
        image: ClusterImage,
        settings: ControllerSettings,
        *,
        random_bytes: Callable[[int], bytes],
        now_ms: int,
        kraft_version: Callable[[], int] = lambda: 0,
    ) -> None:
        """Start from `image`: all records of the log, all of them committed.

        `kraft_version` returns the version in force, which control records of the quorum set.
        """
        self.cluster: Final = ClusterReplay(image)
        self._kraft_version: Final = kraft_version
        self.sessions: Final = Sessions(session_timeout_ms=settings.broker_session_timeout_ms)
        self._reports: Final = LogReports(self.cluster, settings, self.rules)
        changes, self._partitions = self._reports.changes, self._reports.partitions
        self._reassignments: Final = self.rules.reassignments(self.cluster, changes)
        assignments = Assignments(self.cluster, random_bytes)
        self._topics: Final = TopicDecisions(self.cluster, settings, assignments, random_bytes)
        self._cluster_changes: Final = ClusterDecisions(self.cluster, self._partitions, settings)
        self._balance: Final = LeaderBalance(self.cluster, changes, settings, now_ms)
        self.decide_balance: Final = self._balance.decide
        self.next_balance_ms: Final = self._balance.next_ms
        self._slices: Final = self.rules.slices(self.cluster, self._partitions)
        self._resumptions: Final = self.rules.resumptions(
            self.cluster, self.sessions, at_once=self.rules.slices.at_once
        )
        self._deciders: Final[Mapping[type, Callable[[Any], Decision[object]]]] = {
            AlterPartitions: self._partitions.decide_alter,
            AlterReassignments: self._reassignments.decide,
            AssignReplicas: self._partitions.decide_assignment,
            CreatePartitions: self._topics.decide_create_partitions,
            CreateTopics: self._topics.decide_create,
            DeleteTopics: self._topics.decide_delete,
            ElectLeaders: self._partitions.decide_requested,
            FindTopics: self._topics.decide_find,
            ReportLogs: self._reports.decide,
        }
        for broker_id in self.cluster.brokers:
            self.sessions.assume(broker_id, now_ms)

    def apply(self, offset: Offset, record: MetadataRecord) -> None:
        """Apply the record appended at `offset`."""
        self.cluster.apply(offset, record)
        self._reports.note_applied(record)
        self._slices.note_applied(record)

    def renew_all(self, now_ms: int) -> None:
        """Renew every session after a pause of this process; at most RENEWALS_MAX in a row."""
        for broker_id in self.cluster.brokers:
            self.sessions.renew(broker_id, now_ms)

    def touch(self, heartbeat: BrokerHeartbeat, now_ms: int) -> None:
        """Record a heartbeat on arrival, even if its decision has to wait (KAFKA-15019)."""
        error_code = broker_epoch_error(self.cluster, heartbeat.broker_id, heartbeat.broker_epoch)
        if error_code is ErrorCode.NONE:
            can_lead = not (heartbeat.want_fence or heartbeat.want_shut_down)
            offset = heartbeat.metadata_offset
            self.sessions.touch(heartbeat.broker_id, now_ms, offset, can_lead=can_lead)
            for leader_id in heartbeat.unanswering or ():
                self.sessions.note_unanswered(leader_id, now_ms)

    def decide(
        self, request: ControllerRequest, *, now_ms: int, base_offset: Offset
    ) -> Decision[object]:
        """Decide a request. `base_offset`: the offset of its first record, if it has records."""
        try:
            if isinstance(request, ClusterChange | AllocateProducerIds):
                return self._cluster_changes.decide(request, base_offset)
            match request:
                case BrokerRegistration():
                    return self._decide_registration(request, now_ms, base_offset)
                case BrokerHeartbeat():
                    return self._decide_heartbeat(request, now_ms, base_offset)
                case AlterConfigs():
                    return decide_configs(self.cluster, request, base_offset)
                case _:
                    return self._deciders[type(request)](request)
        except TopicRefused as refusal:  # of the whole request
            return Decision(response=failure_response(request, refusal))

    @property
    def is_upgrade_due(self) -> bool:
        """True if a metadata record orders a kraft.version above the version in force."""
        return self.cluster.feature_level(KRAFT_FEATURE) > self._kraft_version()

    def decide_activation(self) -> Decision[None]:
        """Elect for leaderless partitions: the last controller's decision may be half written."""
        self._slices.note_leaderless()
        return self.decide_elections()

    @property
    def has_elections(self) -> bool:
        """True while partitions wait for `decide_elections`."""
        return self._slices.has_elections

    def decide_elections(self) -> Decision[None]:
        """Elect leaders for one slice of the partitions that wait for an election."""
        return Decision(response=None, records=self._slices.elections(frozenset()))

    def decide_expiry(self, now_ms: int) -> Decision[BrokerId | None]:
        """Fence the broker whose session ended first, if a session has ended.

        One broker at a time: the next decision starts from the resulting state (KAFKA-13173).
        """
        overdue = self._next_expiry()
        if overdue is None or overdue[0] > now_ms:
            return Decision(response=None)
        return self._decide_fencing(overdue[1])

    def next_expiry_ms(self) -> int | None:
        """Return when `decide_expiry` may next fence a broker; None: all are fenced."""
        expiry = self._next_expiry()
        return None if expiry is None else expiry[0]

    def decide_process_died(
        self, broker_id: BrokerId, *, broker_epoch: int, now_ms: int
    ) -> Decision[BrokerId | None]:
        """Fence a broker whose process died, unless a new process has registered since.

        Each silent broker must first be fenced or send a heartbeat: `Sessions.may_leave_ms`.
        After a pause of this process, old heartbeats of the broker may still be in our sockets.
        They no longer count: a broker that is alive after all must register again.
        """
        broker = self.cluster.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return Decision(response=None)
        self.sessions.expire(broker_id, now_ms)  # so that a new process may register
        if broker.fenced or not self._may_leave(broker_id, now_ms):
            return Decision(response=None)
        if self.sessions.open_until_ms(broker_id, self._unfenced()) > now_ms:
            return Decision(response=None)
        return self._decide_fencing(broker_id)

    def check_invariants(self) -> list[str]:
        """Return the broken invariants. For tests and simulation: it reads every partition."""
        fenced = {b.broker_id for b in self.cluster.brokers.values() if b.fenced}
        broken = [
            f"1: {name} has a fenced broker in {partition.isr}"
            for name in self.cluster.topic_names()
            for partition in self.cluster.partitions(name)
            if fenced & {partition.leader_id, *partition.isr}
        ]
        broken += self._partitions.members_without_log()
        silent = [b for b in self.cluster.brokers if self.sessions.of(b) is None]
        return broken + [f"2: broker {broker_id} has no session" for broker_id in silent]

    def _next_expiry(self) -> tuple[int, BrokerId] | None:
        unfenced, expires_ms = self._unfenced(), self.sessions.expires_ms
        return min(
            [(expires_ms(broker_id, unfenced), broker_id) for broker_id in unfenced], default=None
        )

    def _unfenced(self) -> list[BrokerId]:
        return [broker.broker_id for broker in self.cluster.brokers.values() if not broker.fenced]

    def _may_leave(self, broker_id: BrokerId, now_ms: int) -> bool:
        return self.sessions.may_leave_ms(broker_id, now_ms, self._unfenced()) <= now_ms

    def _decide_fencing(self, broker_id: BrokerId) -> Decision[BrokerId | None]:
        """Take the broker out of every ISR, then fence it.

        In this order, a half-written decision is repeated: the broker is not fenced yet.
        """
        broker = self.cluster.brokers[broker_id]
        departure = self._slices.departure(broker_id)
        if not departure.is_whole:
            return Decision(response=broker_id, records=(*departure.changes,), goes_on=True)
        fence = BrokerRegistrationChange(
            broker_id=broker_id, broker_epoch=broker.broker_epoch, fenced=True
        )
        return Decision(response=broker_id, records=(*departure.changes, fence))

    def _decide_registration(
        self, request: BrokerRegistration, now_ms: int, base_offset: Offset
    ) -> Decision[RegistrationReply]:
        broker = self.cluster.brokers.get(request.broker_id)
        losses = losses_since(broker, request)
        resumes = self._resumptions.may_resume(broker, request, losses)
        self.sessions.note_sign(request.broker_id, now_ms)
        refusal = registration_refusal(
            self.cluster.brokers,
            request,
            is_live=self.sessions.is_live(request.broker_id, now_ms),
            in_force=self.cluster.features,
            kraft_version=self._kraft_version(),
            may_leave=resumes  # it leaves no ISR
            or is_total(broker, losses)
            or self._may_leave(request.broker_id, now_ms),
        )
        first, level_refusal = levels_for_registration(self.cluster, request)
        refusal = refusal or level_refusal
        if refusal is not None:
            return Decision(response=refusal)
        if broker is not None and broker.incarnation_id == request.incarnation_id:
            self.sessions.begin(request.broker_id, now_ms)
            reply = RegistrationReply(error_code=ErrorCode.NONE, broker_epoch=broker.broker_epoch)
            return Decision(response=reply)  # a retry: the first response was lost
        if losses.is_partial and (
            raised := self._reports.raised_level(RegistrationReply(error_code=ErrorCode.NONE))
        ):
            return raised
        if resumes:
            return self._resumptions.decide(request, now_ms, base_offset, first)
        # A new process may have a shorter log than the process before it: it starts outside ISRs.
        departure = self._slices.departure(request.broker_id, losses)
        changes, held_alone = departure.changes, departure.held_alone
        remark = None if broker is None else remark_on(broker, losses.worst, held_alone)
        if not departure.is_whole:
            unregistered = RegistrationReply(error_code=ErrorCode.NONE)
            remark = remark if held_alone else None
            return Decision(response=unregistered, records=(*changes,), remark=remark, goes_on=True)
        self.sessions.begin(request.broker_id, now_ms)
        epoch = base_offset + len(first) + len(changes)
        register = registration_record(request, epoch)
        reply = RegistrationReply(error_code=ErrorCode.NONE, broker_epoch=epoch)
        remark = remark or ignored_min_isr(self.cluster, request)
        return Decision(response=reply, records=(*first, *changes, register), remark=remark)

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
        failed = newly_failed(broker, request)
        if failed:
            reply = HeartbeatReply(error_code=ErrorCode.NONE, is_fenced=broker.fenced)
            return self._reports.raised_level(reply) or decide_failed(self._slices, broker, failed)
        session = some(self.sessions.of(request.broker_id), "a heartbeat begins a session")
        if request.has_failed and not session.has_failed:
            reply = HeartbeatReply(error_code=ErrorCode.NONE, is_fenced=broker.fenced)
            return self._reports.raised_level(reply) or decide_all_failed(
                self._slices, broker, session
            )
        before = state_of(broker)
        after = next_state(
            broker,
            request,
            has_leaderships=request.want_shut_down
            and self._slices.has_to_hand_over(request.broker_id),
            others_have_replayed_shutdown=self._is_shutdown_replayed(session),
            may_open_logs=self._resumptions.may_open_logs(request, now_ms),
        )
        records, goes_on = self._change_state(broker, before, after)
        if after is BrokerState.CONTROLLED_SHUTDOWN and records:
            session.shutdown_offset = base_offset + len(records) - 1
        reply = HeartbeatReply(
            error_code=ErrorCode.NONE,
            is_caught_up=request.metadata_offset >= broker.broker_epoch,
            is_fenced=after in {BrokerState.FENCED, BrokerState.SHUTDOWN_NOW},
            should_shut_down=after is BrokerState.SHUTDOWN_NOW,
        )
        return Decision(response=reply, records=records, goes_on=goes_on)

    def _change_state(
        self, broker: BrokerImage, before: BrokerState, after: BrokerState
    ) -> tuple[tuple[MetadataRecord, ...], bool]:
        """Return the records of a change of state; True: more slices follow."""
        match after:
            case BrokerState.CONTROLLED_SHUTDOWN:
                return self._shut_down(broker, is_new=before is not after)
            case _ if before is after:
                return (), False
            case BrokerState.UNFENCED:
                change = BrokerRegistrationChange(
                    broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=False
                )
                # Elections after the change: a fenced broker leads nothing, even for one record.
                self._slices.note_leaderless(broker.broker_id)
                return (change, *self._slices.elections(frozenset({broker.broker_id}))), False
            case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW:
                if broker.fenced:
                    return (), False
                fencing = self._decide_fencing(broker.broker_id)
                return fencing.records, fencing.goes_on
            case _:
                assert_never(after)

    def _shut_down(
        self, broker: BrokerImage, *, is_new: bool
    ) -> tuple[tuple[MetadataRecord, ...], bool]:
        """Take the broker's leaderships and ISR memberships away, slice by slice.

        The first slice also writes the state, so no leader adds the broker to an ISR again.
        """
        departure = self._slices.departure(broker.broker_id)
        change = BrokerRegistrationChange(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            in_controlled_shutdown=True,
        )
        records = (*departure.changes, *((change,) if is_new else ()))
        return records, not departure.is_whole

    def _is_shutdown_replayed(self, session: Session) -> bool:
        """Return whether every other active broker has replayed the broker's last hand-over."""
        least_offset = self.sessions.least_offset(active_brokers(self.cluster))
        return least_offset >= session.shutdown_offset
