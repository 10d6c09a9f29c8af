"""The life of a broker: registration, heartbeats, fencing, controlled shutdown.

It refuses a second process under a live broker's id, and heartbeats of an earlier registration. A
broker is unfenced only when it has replayed its own registration: before, it would serve old data.
Sources: KIP-631; KAFKA-13173 (fence one at a time), KAFKA-15019 (a late heartbeat still counts),
KAFKA-18138 (a new controller tracks every registered broker).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.controller.directory_claims import directory_problem
from quorumlog.metadata_quorum.controller.min_insync_replicas import SERVER_NAME, of_cluster
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image.features import KRAFT_FEATURE, level_problem
from quorumlog.metadata_quorum.image.model import BrokerImage
from quorumlog.metadata_quorum.image.records import RegisterBroker
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

SILENT_SHARE: Final = 3
"""A broker that gave no sign for a third of its session is silent: heartbeats come more often."""
OPENING_SESSIONS: Final = 3
"""For how many sessions a broker may open its logs while another one that was killed serves."""
RENEWALS_MAX: Final = 2
"""How often a silent broker's session is renewed because the controller was not running itself."""


class BrokerState(Enum):
    """What the controller lets a registered broker do."""

    FENCED = "registered; leads no partition, is in no ISR"
    UNFENCED = "in service"
    CONTROLLED_SHUTDOWN = "hands over what it leads, then stops"
    SHUTDOWN_NOW = "leads nothing any more: it is fenced and may stop"


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
    """The soft state of a broker: when it was last heard, how far it has replayed.

    last_contact_ms: from then on, the session lasts. A new controller begins it without a sign.
    last_sign_ms: when this controller heard the broker, or a new process of it; None: never.
    registered_ms: when this process registered with this controller; None: with another one.
    serves_since_ms: since when its heartbeats say that it can lead; None: they do not.
    opens_logs: it registered with this controller, and no heartbeat said yet that it can lead.
    has_failed: it can use no log directory, and has left ISRs and ELRs for that.
    """

    last_contact_ms: int
    last_sign_ms: int | None = None
    registered_ms: int | None = None
    has_failed: bool = False
    serves_since_ms: int | None = None
    opens_logs: bool = False
    metadata_offset: int = -1
    shutdown_offset: int = -1  # where its controlled shutdown was decided
    renewals: int = 0  # how often it was renewed since the broker was heard
    is_expired: bool = False  # its process is known to be gone: its heartbeats do not count


class Sessions:
    """The liveness of every registered broker. Soft state: a new controller starts it afresh."""

    def __init__(self, *, session_timeout_ms: int) -> None:
        self.session_timeout_ms: Final = session_timeout_ms
        self._sessions: dict[BrokerId, Session] = {}

    def of(self, broker_id: BrokerId) -> Session | None:
        """Return the session of a broker, or None."""
        return self._sessions.get(broker_id)

    def assume(self, broker_id: BrokerId, now_ms: int) -> None:
        """Begin a session without a sign of the broker: this controller has just taken over."""
        self._sessions[broker_id] = Session(last_contact_ms=now_ms)

    def touch(
        self, broker_id: BrokerId, now_ms: int, metadata_offset: int, *, can_lead: bool = False
    ) -> None:
        """Note a heartbeat of the broker."""
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
        """Note that a process of the broker is there, maybe not the registered one."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.last_sign_ms = max(session.last_sign_ms or 0, now_ms)

    def renew(self, broker_id: BrokerId, now_ms: int) -> None:
        """Renew a session without a heartbeat, at most RENEWALS_MAX times in a row."""
        session = self._sessions.get(broker_id)
        if session is not None and not session.is_expired and session.renewals < RENEWALS_MAX:
            session.last_contact_ms, session.renewals = (
                max(session.last_contact_ms, now_ms),
                session.renewals + 1,
            )

    def begin(self, broker_id: BrokerId, now_ms: int) -> None:
        """Start over: another process has registered."""
        self._sessions[broker_id] = Session(
            last_contact_ms=now_ms, last_sign_ms=now_ms, registered_ms=now_ms, opens_logs=True
        )

    def expire(self, broker_id: BrokerId, now_ms: int) -> None:
        """End the session for good: the process is known to be gone. `begin` starts another."""
        self._sessions[broker_id] = Session(
            last_contact_ms=now_ms - self.session_timeout_ms, is_expired=True
        )

    def is_expired(self, broker_id: BrokerId) -> bool:
        """Tell whether the process of the broker's registration is known to be gone."""
        session = self._sessions.get(broker_id)
        return session is not None and session.is_expired

    def is_live(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Tell whether the broker was heard within the session timeout."""
        session = self._sessions.get(broker_id)
        return session is not None and now_ms - session.last_contact_ms < self.session_timeout_ms

    def expires_ms(self, broker_id: BrokerId, unfenced: Collection[BrokerId]) -> int:
        """Return when to fence the broker if it stays silent; 0 for one never heard.

        A broker whose process is gone waits for each `unfenced` broker that was silent already.
        Each broker waits for the brokers that open their logs.
        """
        session = self._sessions.get(broker_id)
        if session is None:
            return 0
        end_ms = session.last_contact_ms + self.session_timeout_ms
        if session.is_expired:
            end_ms = self.may_leave_ms(broker_id, end_ms, unfenced)
        return max(end_ms, self.open_until_ms(broker_id, unfenced))

    def may_leave_ms(self, broker_id: BrokerId, at_ms: int, unfenced: Collection[BrokerId]) -> int:
        """Return when a broker whose process is gone since `at_ms` may leave its ISRs.

        A broker that is silent may have lost its memory with its power. It must not stay in an ISR
        alone because others left before it: docs/decisions/0093-the-silent-leave-first.md
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
        """Return how long to wait for the logs of the others, 0 if they serve.

        Those that took up their places open them. One may prove damaged, and a broker that has left
        the ISR by then is not asked for what it holds.
        """
        others = [self._sessions.get(one) for one in unfenced if one != broker_id]
        registered = [one.registered_ms for one in others if one and one.opens_logs]
        latest_ms = max([-1, *(one for one in registered if one is not None)])
        return latest_ms + OPENING_SESSIONS * self.session_timeout_ms if latest_ms >= 0 else 0

    def are_in_service(self, broker_ids: Collection[BrokerId]) -> bool:
        """Tell whether one of these brokers is known to serve."""
        return any(session.serves_since_ms is not None for session in self._those_of(broker_ids))

    def may_open_logs(self, others: Collection[BrokerId], now_ms: int) -> bool:
        """Tell whether a broker may keep its places while it opens its logs.

        As long as no other one serves, or only some that were killed, too, and not for long.
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
        """Return how far the slowest of these brokers has replayed."""
        sessions = [self._sessions.get(broker_id) for broker_id in broker_ids]
        return min((-1 if s is None else s.metadata_offset for s in sessions), default=2**63)


def state_of(broker: BrokerImage) -> BrokerState:
    """Return the state that the log gives a broker (SHUTDOWN_NOW is not written: it is fenced)."""
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

    `may_open_logs`: one that took up its places when it registered keeps them meanwhile.
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

    `is_live`, `may_leave`: the earlier process of this broker, with regard to `Sessions`.
    `in_force`, `kraft_version`: the feature levels, which the broker must work with.

    # DEVIATION: Kafka waits for the old session to end. A process that listens on the old one's
    # control address is its successor: docs/decisions/0008-a-successor-registers-at-once.md
    A process with another log directory is refused: it must not replace a live one that has the
    records.
    """
    shared = directory_problem(brokers.values(), request)
    if shared is not None:
        return RegistrationReply(error_code=ErrorCode.INVALID_REQUEST, error_message=shared)
    kraft_version = max(kraft_version, in_force.get(KRAFT_FEATURE, 0))  # it may be about to rise
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
            "silent: that one must be heard, or leave, before this process takes over",
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
    """Return the record of a registration."""
    return RegisterBroker(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        host=request.host,
        port=request.port,
        control_address=request.control_address,
        rack=request.rack,
        directory_id=request.directory_id,
        boot_id=request.boot_id,
        min_insync_replicas=request.min_insync_replicas,
        broker_epoch=broker_epoch,
        features=request.features,
        log_dirs=request.log_dirs or None,
    )


def ignored_min_isr(cluster: ClusterReplay, request: BrokerRegistration) -> str | None:
    """Return a remark if a broker's file has another min.insync.replicas than the cluster."""
    number = of_cluster(cluster)
    if number in {None, request.min_insync_replicas}:
        return None
    wanted = f"{SERVER_NAME}={request.min_insync_replicas}"
    return (
        f"{wanted} of broker {request.broker_id} does not count: the cluster has {number}. "
        f"`quorumlog configs alter broker '' --set {wanted}` changes it for all brokers"
    )


def active_brokers(cluster: ClusterReplay) -> frozenset[BrokerId]:
    """Return the brokers that may lead and be in an ISR."""
    return frozenset(
        broker.broker_id
        for broker in cluster.brokers.values()
        if not broker.fenced and not broker.in_controlled_shutdown
    )


def broker_epoch_error(cluster: ClusterReplay, broker_id: BrokerId, broker_epoch: int) -> ErrorCode:
    """Return why a request of this registration is refused, or NONE."""
    broker = cluster.brokers.get(broker_id)
    if broker is None:
        return ErrorCode.BROKER_ID_NOT_REGISTERED
    return ErrorCode.NONE if broker.broker_epoch == broker_epoch else ErrorCode.STALE_BROKER_EPOCH
