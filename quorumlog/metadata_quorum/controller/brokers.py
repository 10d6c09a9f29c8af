"""The life of a broker: registration, heartbeats, fencing, controlled shutdown.

It refuses a second process under a live broker's id, and heartbeats of an earlier registration. A
broker is unfenced only after it has replayed its own registration: before, its metadata is stale.
Sources: KIP-631; KAFKA-13173 (fence one at a time), KAFKA-15019 (a late heartbeat still counts),
KAFKA-18138 (a new controller tracks every registered broker).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.controller.min_insync_replicas import SERVER_NAME, of_cluster
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image.details import same_fields
from quorumlog.metadata_quorum.image.features import KRAFT_FEATURE, level_problem
from quorumlog.metadata_quorum.image.model import LOST, BrokerImage
from quorumlog.metadata_quorum.image.records import RegisterBroker
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

UNASSIGNED: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
MIGRATING: Final = "AAAAAAAAAAAAAAAAAAAAAA"
RESERVED: Final = frozenset({UNASSIGNED, LOST, MIGRATING})
"""Ids that stand for no directory. Where Kafka's records have UNASSIGNED, ours have no id."""


def directories_of(broker: BrokerImage | BrokerRegistration) -> frozenset[str]:
    """Return the ids of a broker's usable directories, with that of its metadata log."""
    named = {*broker.log_dirs, broker.directory_id}
    return frozenset(one for one in named if one is not None)


def directory_problem(brokers: Collection[BrokerImage], request: BrokerRegistration) -> str | None:
    """Return the problem with the directories of a registration, or None."""
    claimed = directories_of(request)
    if claimed & RESERVED or len({*request.log_dirs}) < len(request.log_dirs):
        return f"Broker {request.broker_id} names a reserved log directory, or one twice"
    for other in brokers:
        shared = sorted(claimed & directories_of(other))
        if shared and other.broker_id != request.broker_id:
            return (
                f"Log directory {shared[0]} belongs to broker {other.broker_id}: "
                "give the copy a new directory.id in its meta.properties"
            )
    return None


SILENT_SHARE: Final = 3
"""A broker without a sign for a third of its session is silent: heartbeats come more often."""
# DEVIATION: Kafka fences a silent broker at the end of its session, whatever others notice.
# docs/decisions/0006-dead-and-silent-brokers.md
REPORTS_SHARE: Final = 12
"""The part of a session over which followers must report a silent leader, without a sign of it."""
OPENING_SESSIONS: Final = 3
"""The time to open logs, in sessions, while another broker that was killed serves already."""
RENEWALS_MAX: Final = 2
"""Renewals in a row of a silent broker's session after pauses of the controller's own process."""


class BrokerState(Enum):
    """The state of a registered broker."""

    FENCED = "registered; leads no partition, is in no ISR"
    UNFENCED = "in service"
    CONTROLLED_SHUTDOWN = "hands over its leaderships, then stops"
    SHUTDOWN_NOW = "leads no partition: it is fenced and may stop"


TRANSITIONS: Final[Mapping[BrokerState, frozenset[BrokerState]]] = MappingProxyType(
    {
        BrokerState.FENCED: frozenset({BrokerState.UNFENCED, BrokerState.SHUTDOWN_NOW}),
        BrokerState.UNFENCED: frozenset(
            {BrokerState.FENCED, BrokerState.CONTROLLED_SHUTDOWN, BrokerState.SHUTDOWN_NOW}
        ),
        BrokerState.CONTROLLED_SHUTDOWN: frozenset({BrokerState.SHUTDOWN_NOW}),
        BrokerState.SHUTDOWN_NOW: frozenset(),
    }
)


@dataclass(slots=True, kw_only=True)
class Session:
    """The soft state of a broker: its last heartbeat and its replayed metadata offset.

    last_contact_ms: the start of the session timeout; a new controller sets it to its own start.
    last_sign_ms: the last heartbeat or registration request at this controller; None: none.
    registered_ms: when the process registered with this controller; None: with an earlier one.
    serves_since_ms: since when its heartbeats offer to lead; None: the last one did not.
    opens_logs: it registered with this controller, and no heartbeat has offered to lead yet.
    reported_ms: the first and the last report of an unanswered fetch since the last contact.
    has_failed: all its log directories have failed, so it has left ISRs and ELRs.
    """

    last_contact_ms: int
    last_sign_ms: int | None = None
    registered_ms: int | None = None
    reported_ms: tuple[int, int] = (-1, -1)
    has_failed: bool = False
    serves_since_ms: int | None = None
    opens_logs: bool = False
    metadata_offset: int = -1
    shutdown_offset: int = -1  # of the last record of its controlled shutdown
    renewals: int = 0  # since the last heartbeat
    is_expired: bool = False  # its process died: late heartbeats do not count


class Sessions:
    """The liveness of every registered broker. Soft state: a new controller starts without it."""

    def __init__(self, *, session_timeout_ms: int) -> None:
        self.session_timeout_ms: Final = session_timeout_ms
        self._sessions: dict[BrokerId, Session] = {}

    def of(self, broker_id: BrokerId) -> Session | None:
        """Return the session of a broker, or None."""
        return self._sessions.get(broker_id)

    def assume(self, broker_id: BrokerId, now_ms: int) -> None:
        """Begin a session without a sign of the broker, at the start of this controller."""
        self._sessions[broker_id] = Session(last_contact_ms=now_ms)

    def touch(
        self, broker_id: BrokerId, now_ms: int, metadata_offset: int, *, can_lead: bool = False
    ) -> None:
        """Record a heartbeat of the broker."""
        session = self._sessions.setdefault(broker_id, Session(last_contact_ms=now_ms))
        if session.is_expired:
            return
        session.last_contact_ms, session.renewals = max(session.last_contact_ms, now_ms), 0
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        since_ms = now_ms if session.serves_since_ms is None else session.serves_since_ms
        session.serves_since_ms = since_ms if can_lead else None
        session.opens_logs = session.opens_logs and not can_lead
        self.note_sign(broker_id, now_ms)

    def note_sign(self, broker_id: BrokerId, now_ms: int) -> None:
        """Record a sign of life of the broker, perhaps of an unregistered process."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.last_sign_ms = max(session.last_sign_ms or 0, now_ms)

    def note_unanswered(self, broker_id: BrokerId, now_ms: int) -> None:
        """Record the report of a follower: this leader leaves its fetch unanswered."""
        session = self._sessions.get(broker_id)
        if session is not None and now_ms > session.last_contact_ms:
            first_ms, last_ms = session.reported_ms
            is_first = first_ms <= session.last_contact_ms
            session.reported_ms = now_ms if is_first else first_ms, max(last_ms, now_ms)

    def renew(self, broker_id: BrokerId, now_ms: int) -> None:
        """Renew a session without a heartbeat, at most RENEWALS_MAX times in a row."""
        session = self._sessions.get(broker_id)
        if session is not None and not session.is_expired and session.renewals < RENEWALS_MAX:
            session.last_contact_ms, session.renewals = (
                max(session.last_contact_ms, now_ms),
                session.renewals + 1,
            )

    def begin(self, broker_id: BrokerId, now_ms: int) -> None:
        """Begin the session of a newly registered process."""
        self._sessions[broker_id] = Session(
            last_contact_ms=now_ms, last_sign_ms=now_ms, registered_ms=now_ms, opens_logs=True
        )

    def expire(self, broker_id: BrokerId, now_ms: int) -> None:
        """End the session of a process that died. Only `begin` starts a new one."""
        self._sessions[broker_id] = Session(
            last_contact_ms=now_ms - self.session_timeout_ms, is_expired=True
        )

    def is_expired(self, broker_id: BrokerId) -> bool:
        """Return whether the broker's registered process has died."""
        session = self._sessions.get(broker_id)
        return session is not None and session.is_expired

    def is_live(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Return whether the broker's session is younger than the session timeout."""
        session = self._sessions.get(broker_id)
        return session is not None and now_ms - session.last_contact_ms < self.session_timeout_ms

    def expires_ms(self, broker_id: BrokerId, unfenced: Collection[BrokerId]) -> int:
        """Return when to fence the broker if it stays silent; 0: it has no session.

        A silent leader that followers report need not be silent to the end of its session. It,
        and a broker whose process died, wait for each `unfenced` broker that is silent already.
        Every broker waits for the brokers that open their logs.
        """
        session = self._sessions.get(broker_id)
        if session is None:
            return 0
        end_ms = session.last_contact_ms + self.session_timeout_ms
        first_ms, last_ms = session.reported_ms
        are_enough = last_ms - first_ms >= self.session_timeout_ms // REPORTS_SHARE
        if session.is_expired:
            end_ms = self.may_leave_ms(broker_id, end_ms, unfenced)
        elif are_enough and first_ms > session.last_contact_ms:
            silent_ms = session.last_contact_ms + self.session_timeout_ms // SILENT_SHARE
            at_ms = max(silent_ms, last_ms)
            end_ms = min(end_ms, self.may_leave_ms(broker_id, at_ms, unfenced))
        return max(end_ms, self.open_until_ms(broker_id, unfenced))

    def may_leave_ms(self, broker_id: BrokerId, at_ms: int, unfenced: Collection[BrokerId]) -> int:
        """Return when a broker whose process died at `at_ms` may leave its ISRs.

        The machine of a silent broker may have lost power, and unflushed records with it. Such a
        broker must not stay alone in an ISR that the others left before it:
        docs/decisions/0006-dead-and-silent-brokers.md
        """
        silent_ms = at_ms - self.session_timeout_ms // SILENT_SHARE
        may_leave_ms = at_ms
        for other_id in unfenced:
            other = self._sessions.get(other_id)
            if other_id == broker_id or other is None or other.is_expired:
                continue
            if other.last_sign_ms is None or other.last_sign_ms < silent_ms:
                end_ms = other.last_contact_ms + self.session_timeout_ms + 1
                may_leave_ms = max(may_leave_ms, end_ms)
            else:
                may_leave_ms = max(may_leave_ms, other.last_sign_ms)
        return may_leave_ms

    def open_until_ms(self, broker_id: BrokerId, unfenced: Collection[BrokerId]) -> int:
        """Return until when to wait for other brokers that open their logs; 0: none does.

        A log may prove damaged. A broker that had left the ISR before would not be in the ELR
        either, and the controller would then elect without its records.
        """
        latest_ms = -1
        for other_id, other in self._sessions.items():
            if other.opens_logs and other_id != broker_id and other_id in unfenced:
                latest_ms = max(
                    latest_ms, -1 if other.registered_ms is None else other.registered_ms
                )
        return latest_ms + OPENING_SESSIONS * self.session_timeout_ms if latest_ms >= 0 else 0

    def are_in_service(self, broker_ids: Collection[BrokerId]) -> bool:
        """Return whether one of these brokers serves, by its heartbeats."""
        return any(session.serves_since_ms is not None for session in self._those_of(broker_ids))

    def may_open_logs(self, others: Collection[BrokerId], now_ms: int) -> bool:
        """Return whether a broker may stay in its ISRs while it opens its logs.

        True while no other broker serves, or each one that serves registered with this controller
        and has served for less than OPENING_SESSIONS sessions.
        """
        latest_ms = OPENING_SESSIONS * self.session_timeout_ms
        return all(
            session.serves_since_ms is None
            or (session.registered_ms is not None and now_ms - session.serves_since_ms < latest_ms)
            for session in self._those_of(others)
        )

    def _those_of(self, broker_ids: Collection[BrokerId]) -> list[Session]:
        sessions = map(self._sessions.get, sorted(broker_ids))
        return [session for session in sessions if session is not None and not session.is_expired]

    def least_offset(self, broker_ids: frozenset[BrokerId]) -> int:
        """Return the least metadata offset that these brokers have replayed."""
        sessions = [self._sessions.get(broker_id) for broker_id in broker_ids]
        return min((-1 if s is None else s.metadata_offset for s in sessions), default=2**63)


def state_of(broker: BrokerImage) -> BrokerState:
    """Return a broker's state by the metadata log; SHUTDOWN_NOW is written as fenced."""
    if broker.fenced:
        return BrokerState.FENCED
    return (
        BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED
    )


def next_state(
    broker: BrokerImage,
    heartbeat: BrokerHeartbeat,
    *,
    has_leaderships: bool,
    others_have_replayed_shutdown: bool,
    may_open_logs: bool,
) -> BrokerState:
    """Return the state after a heartbeat. Raises InvariantViolation on an illegal change.

    `may_open_logs`: a broker that stayed unfenced at its registration stays so meanwhile.
    """
    state = after = state_of(broker)
    if state is BrokerState.CONTROLLED_SHUTDOWN:
        if not has_leaderships and others_have_replayed_shutdown:
            after = BrokerState.SHUTDOWN_NOW
    elif heartbeat.want_shut_down:
        leads = state is BrokerState.UNFENCED and has_leaderships
        after = BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
    elif heartbeat.want_fence:
        after = state if may_open_logs else BrokerState.FENCED
    elif heartbeat.metadata_offset >= broker.broker_epoch:
        after = BrokerState.UNFENCED
    require(after is state or after in TRANSITIONS[state], f"legal change: {state} -> {after}")
    return after


def registration_refusal(
    brokers: Mapping[BrokerId, BrokerImage],
    request: BrokerRegistration,
    *,
    is_live: bool,
    may_leave: bool,
    in_force: Mapping[str, int],
    kraft_version: int,
) -> RegistrationReply | None:
    """Return the refusal of a registration, or None.

    `is_live`, `may_leave`: of the broker's registered process, by `Sessions`.
    `in_force`, `kraft_version`: the feature levels, which the broker must support.

    # DEVIATION: Kafka waits for the old session to end. A process that listens on the same control
    # address is the successor: docs/decisions/0006-dead-and-silent-brokers.md
    A process with another log directory is refused while the registered process, which has the
    records, is live.
    """
    shared = directory_problem(brokers.values(), request)
    if shared is not None:
        return RegistrationReply(error_code=ErrorCode.INVALID_REQUEST, error_message=shared)
    kraft_version = max(kraft_version, in_force.get(KRAFT_FEATURE, 0))  # an upgrade may be ordered
    levels = {**in_force, KRAFT_FEATURE: kraft_version}
    problems = (level_problem(request.features, name, levels[name]) for name in levels)
    too_old = next((problem for problem in problems if problem is not None), None)
    if too_old is not None:
        return RegistrationReply(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message=f"Broker {request.broker_id} is of another release: {too_old} by it. "
            "Start it with the release of the other nodes",
        )
    broker = brokers.get(request.broker_id)
    if broker is None or broker.incarnation_id == request.incarnation_id:
        return None
    if not broker.fenced and not may_leave:
        return RegistrationReply(
            error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            error_message=f"Broker {request.broker_id} is in service, and another broker is "
            "unheard: it must send a heartbeat, or be fenced, before this process takes over",
        )
    has_its_directory = broker.directory_id in {None, request.directory_id}
    is_successor = broker.control_address == request.control_address and has_its_directory
    if is_successor or not is_live:
        return None
    return RegistrationReply(
        error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        error_message=f"Another broker is registered with id {request.broker_id}, "
        f"at {broker.control_address}",
    )


def registration_record(request: BrokerRegistration, broker_epoch: int) -> RegisterBroker:
    """Return the record of a broker's registration."""
    shared = same_fields(request, RegisterBroker)
    shared["log_dirs"] = request.log_dirs or None
    return RegisterBroker(broker_epoch=broker_epoch, **shared)


def ignored_min_isr(cluster: ClusterReplay, request: BrokerRegistration) -> str | None:
    """Return a remark if a broker's file and the cluster differ in min.insync.replicas."""
    number = of_cluster(cluster)
    if number in {None, request.min_insync_replicas}:
        return None
    wanted = f"{SERVER_NAME}={request.min_insync_replicas}"
    return (
        f"{wanted} of broker {request.broker_id} does not count: the cluster has {number}. "
        f"`quorumlog configs alter broker '' --set {wanted}` changes it for all brokers"
    )


def active_brokers(cluster: ClusterReplay) -> frozenset[BrokerId]:
    """Return the brokers that may lead and join an ISR: not fenced, not shutting down."""
    return frozenset(
        broker.broker_id
        for broker in cluster.brokers.values()
        if not broker.fenced and not broker.in_controlled_shutdown
    )


def broker_epoch_error(cluster: ClusterReplay, broker_id: BrokerId, broker_epoch: int) -> ErrorCode:
    """Return the error code for a request with this broker epoch, or NONE."""
    broker = cluster.brokers.get(broker_id)
    if broker is None:
        return ErrorCode.BROKER_ID_NOT_REGISTERED
    return ErrorCode.NONE if broker.broker_epoch == broker_epoch else ErrorCode.STALE_BROKER_EPOCH
