"""A coordinator over a log in memory: writes wait until the test commits or fails them."""

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import AdvanceLogStart, AnswerRequest, AppendRecords
from quorumlog.broker.groups.core.events import Event
from quorumlog.broker.groups.core.records import LogRecord, decode, encode
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    Heartbeat,
    Join,
    Leave,
    LeavingMember,
    Request,
    Result,
    Sync,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

SETTINGS = BrokerSettings(
    group_initial_rebalance_delay_ms=100,
    group_min_session_timeout_ms=10,
    offsets_retention_minutes=1,
    offsets_retention_check_interval_ms=10_000,
)
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def join(member_id: str = "", **changes: object) -> Join:
    values: dict[str, object] = {
        "group_id": "g",
        "member_id": member_id,
        "new_member_id": "new",
        "session_timeout_ms": 1000,
        "rebalance_timeout_ms": 2000,
        "protocol_type": "consumer",
        "protocols": (("range", b"subscription"),),
        "requires_known_member_id": False,
    }
    return Join(**{**values, **changes})  # type: ignore[arg-type]


def sync(member_id: str, generation_id: int, **assignments: bytes) -> Sync:
    return Sync(
        group_id="g", member_id=member_id, generation_id=generation_id, assignments=assignments
    )


def beat(member_id: str, generation_id: int, instance: str | None = None) -> Heartbeat:
    return Heartbeat(
        group_id="g", member_id=member_id, generation_id=generation_id, group_instance_id=instance
    )


def leave(*members: str, instance: str | None = None) -> Leave:
    leaving = (
        LeavingMember(member_id=member_id, group_instance_id=instance) for member_id in members
    )
    return Leave(group_id="g", members=tuple(leaving))


def commit(offset: int, member_id: str = "", generation_id: int = -1) -> CommitOffsets:
    return CommitOffsets(
        group_id="g",
        member_id=member_id,
        generation_id=generation_id,
        offsets={T0: CommittedOffset(offset=offset)},
    )


class Coordination:
    """`log` holds what is committed; a write under way is in `writes`, in order."""

    def __init__(
        self,
        settings: BrokerSettings = SETTINGS,
        *,
        coordinator_class: type[GroupCoordinator] = GroupCoordinator,
        log: list[LogRecord] | None = None,
        now_ms: int = 0,
    ) -> None:
        self.now_ms = now_ms
        self.log = log or []
        self.coordinator = coordinator_class(settings)
        for record in self.log:
            key, value = encode(record)
            known = decode(key, value)
            assert known == record
            self.coordinator.replay(known)
        self.coordinator.loaded(now_ms)
        self.writes: list[AppendRecords[LogRecord]] = []
        self.replies: dict[int, Result] = {}
        self.last_request_id = 0

    def step(self, event: Event) -> None:
        for effect in self.coordinator.step(self.now_ms, event):
            match effect:
                case AnswerRequest(request_id=request_id, result=result):
                    assert request_id not in self.replies, "answered twice"
                    self.replies[request_id] = result
                case AppendRecords():
                    self.writes.append(effect)
                case AdvanceLogStart():
                    raise AssertionError("a log this short is not rewritten")

    def ask(self, request: Request) -> int:
        self.last_request_id += 1
        self.step(events.RequestReceived(request_id=self.last_request_id, request=request))
        return self.last_request_id

    def commit_writes(self) -> None:
        while self.writes:
            self.commit_write()

    def commit_write(self) -> None:
        write = self.writes.pop(0)
        self.log += write.records
        self.step(events.WriteCommitted(write_id=write.write_id))

    def fail_write(self, error_code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        write = self.writes.pop(0)
        self.step(events.WriteFailed(write_id=write.write_id, error_code=error_code))

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass as a driver does: it looks whenever the coordinator wants it to."""
        until_ms = self.now_ms + elapsed_ms
        while self.coordinator.next_deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.coordinator.next_deadline_ms)
            self.step(events.Ticked())
        self.now_ms = until_ms
        self.step(events.Ticked())

    def answer(self, request: Request) -> Result:
        """Ask, and commit whatever must be committed for the answer."""
        request_id = self.ask(request)
        self.commit_writes()
        return self.replies[request_id]

    def reloaded(self) -> "Coordination":
        """Return another coordinator with the same log, as after a failover."""
        return Coordination(log=list(self.log), now_ms=self.now_ms)

    def stable(self, *member_ids: str, instances: bool = False) -> int:
        """Bring these members to a Stable group; the first leads. Return the generation."""
        for member_id in member_ids:
            instance = f"i-{member_id}" if instances else None
            self.ask(join(new_member_id=member_id, group_instance_id=instance))
        self.tick(200)  # whoever joins during the initial delay prolongs it once
        generation_id = self.coordinator.groups["g"].generation_id
        for member_id in member_ids:
            self.ask(sync(member_id, generation_id, **{key: key.encode() for key in member_ids}))
        self.commit_writes()
        return generation_id
