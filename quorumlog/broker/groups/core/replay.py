"""The load of one partition of `__consumer_offsets`: its committed records, in order."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import LogRecord, decode
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.wire.codec.records import BatchHeader, Record


@dataclass(frozen=True, slots=True)
class Replay:
    """Applies committed records to the durable state. Has no state of its own."""

    _committed: CommittedState
    _rewrite: Rewrite
    _transactional: TransactionalOffsets

    def replay(self, record: LogRecord) -> None:
        """Apply a committed record, written by an earlier coordinator or by this one."""
        # DEVIATION: Kafka applies the records of its log, committed or not.
        # docs/decisions/0028-group-commits.md
        self._committed.apply(record)

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        """Apply a committed record; a record of an unknown kind forbids a rewrite."""
        record = decode(key, value)
        if record is None:
            self._rewrite.has_foreign_records = True
        else:
            self.replay(record)

    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Apply a committed batch of a transaction, or its marker."""
        if header.is_control:
            self._transactional.replay_marker(header, records)
            return
        for record in records:
            if record.key is not None and not self._transactional.replay(header, record):
                self.replay_encoded(record.key, record.value)
