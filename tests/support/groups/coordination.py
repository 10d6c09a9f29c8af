"""A coordinator over a log in memory: writes wait until the test commits or fails them."""

from collections.abc import Iterable
from functools import partial

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.records import LogRecord, decode
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommittedOffset,
    Heartbeat,
    Join,
    Leave,
    LeavingMember,
    Sync,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import decode_batches
from tests.support.coordination.driven_shard import DrivenShard

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


class Coordination(DrivenShard[GroupCoordinator]):
    """The groups of one partition, loaded."""

    def __init__(
        self, settings: BrokerSettings = SETTINGS, *, batches: Iterable[bytes] = (), now_ms: int = 0
    ) -> None:
        super().__init__(partial(GroupCoordinator, settings), batches=batches, now_ms=now_ms)
        self.load()
        self._log: list[LogRecord] = []
        self._decoded = 0

    @property
    def log(self) -> list[LogRecord]:
        """The committed records."""
        for batch in self.batches[self._decoded :]:
            for _, records in decode_batches(batch):
                known = [decode(record.key or b"", record.value) for record in records]
                self._log += [record for record in known if record is not None]
        self._decoded = len(self.batches)
        return self._log

    def reloaded(self) -> "Coordination":
        """Return another coordinator with the same log, as after a failover."""
        return Coordination(batches=self.batches, now_ms=self.now_ms)

    def stable(self, *member_ids: str, instances: bool = False, **changes: object) -> int:
        """Bring these members to a Stable group; the first leads. Return the generation.

        changes: of each join.
        """
        for member_id in member_ids:
            instance = f"i-{member_id}" if instances else None
            self.ask(join("", new_member_id=member_id, group_instance_id=instance, **changes))
        self.tick(200)  # whoever joins during the initial delay prolongs it once
        generation_id = self.coordinator.groups["g"].generation_id
        for member_id in member_ids:
            self.ask(sync(member_id, generation_id, **{key: key.encode() for key in member_ids}))
        self.commit_writes()
        return generation_id
