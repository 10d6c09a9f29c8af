"""The state of one partition of `__consumer_offsets`, as a load replays it from records."""

from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import LogRecord, decode, encode
from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets
from quorumlog.broker.groups.core.rewrite import Rewrite, RewriteLimits
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, Record


class ReplayedGroups:
    """The durable half of a `GroupCoordinator`: only committed records change it."""

    def __init__(
        self,
        settings: BrokerSettings,
        rewrite_limits: RewriteLimits,
        *,
        refusal: Callable[[CommitTransactionalOffsets], ErrorCode],
    ) -> None:
        """`refusal` returns why a group refuses offsets of a transaction, or NONE."""
        self._outbox: Final = GroupOutbox()
        self.committed: Final = CommittedState()
        self.rewrite: Final = Rewrite(self.committed, self._outbox, rewrite_limits)
        self.transactional: Final = TransactionalOffsets(
            settings, self._outbox, self.committed, self.rewrite, refusal=refusal
        )

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        """Apply a committed record; a record of an unknown kind forbids a rewrite."""
        record = decode(key, value)
        if record is None:
            self.rewrite.has_foreign_records = True
        else:
            self.replay(record)

    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Apply a committed batch of a transaction, or its marker."""
        if header.is_control:
            self.transactional.replay_marker(header, records)
            return
        for record in records:
            if record.key is not None and not self.transactional.replay(header, record):
                self.replay_encoded(record.key, record.value)

    def encode(self, record: LogRecord) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record."""
        return encode(record)

    def replay(self, record: LogRecord) -> None:
        """Apply a committed record, written by an earlier coordinator or by this one."""
        # DEVIATION: Kafka applies the records of its log, committed or not.
        # docs/decisions/0005-groups-change-when-their-record-is-committed.md
        self.committed.apply(record)
