"""The producer's state of one transaction, and the outcome of a user's call."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quorumlog.client.core.batch import ProducerIdentity
from quorumlog.client.core.transaction_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    TransactionRequest,
)
from quorumlog.client.errors import KafkaError
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


@dataclass(slots=True, eq=False)
class Outcome:
    """The outcome of a call. `indefinite`: an attempt may have been, or may yet be, executed."""

    operation: str
    is_done: bool = False
    error: KafkaError | None = None
    indefinite: bool = False
    on_done: list[Callable[[], None]] = field(default_factory=list)

    def resolve(self, error: KafkaError | None) -> None:
        """Set the outcome, unless it is set, and call the callbacks."""
        if not self.is_done:
            self.is_done, self.error = True, error
            for callback in self.on_done:
                callback()
            self.on_done.clear()


@dataclass(slots=True, eq=False)
class PendingOffsets:
    """Offsets that wait for their TxnOffsetCommit."""

    group: GroupMetadata
    offsets: dict[TopicPartition, OffsetAndMetadata]
    outcome: Outcome


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction. `is_implicit`: brokers add partitions and groups (KIP-890).

    `may_be_open`: the coordinator may have the transaction open; `is_open`: it certainly has.
    `lost_requests`, `has_gaps`: the next transaction needs another epoch (see `transactions`).
    `has_ended`: the coordinator has accepted EndTxn.
    """

    is_implicit: bool
    to_add: dict[TopicPartition, None] = field(default_factory=dict)
    added: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: deque[PendingOffsets] = field(default_factory=deque)
    may_be_open: bool = False
    is_open: bool = False
    lost_requests: bool = False
    has_gaps: bool = False
    has_ended: bool = False

    def admit(self, topic_partition: TopicPartition) -> None:
        """Add the partition of a new record to the transaction."""
        if self.is_implicit:
            self.may_be_open = True
        elif topic_partition not in self.added:
            self.to_add[topic_partition] = None

    def wanted(self, identity: ProducerIdentity) -> TransactionRequest | None:
        """Return the next request that must succeed before EndTxn; None if there is none."""
        if self.to_add:
            return AddPartitions(identity=identity, partitions=tuple(self.to_add))
        if not self.offsets:
            return None
        first = self.offsets[0]
        if not self.is_implicit and first.group.group_id not in self.groups:
            return AddOffsets(identity=identity, group_id=first.group.group_id)
        return CommitOffsets(
            identity=identity,
            group=first.group,
            offsets=dict(first.offsets),
            is_implicit=self.is_implicit,
        )

    def handle_added(self, codes: Mapping[TopicPartition, int]) -> None:
        """Record the partitions that the coordinator has added; `codes` has an error for each."""
        for name, code in codes.items():
            if code == ErrorCode.NONE:
                self.added.add(name)
                self.to_add.pop(name, None)
                self.may_be_open = self.is_open = True

    def handle_committed(self, request: CommitOffsets, codes: Mapping[TopicPartition, int]) -> None:
        """Remove the offsets that the group coordinator has accepted."""
        self.may_be_open = True
        if not self.offsets:
            return  # removed by `drop_waiting`
        first = self.offsets[0]
        for name, place in request.offsets.items():
            if codes.get(name) == ErrorCode.NONE and first.offsets.get(name) == place:
                del first.offsets[name]
        if not first.offsets:
            self.offsets.popleft().outcome.resolve(None)

    def drop_waiting(self, error: KafkaError) -> None:
        """Drop the partitions and offsets still to add; fail the calls that wait for them."""
        self.to_add.clear()
        while self.offsets:
            self.offsets.popleft().outcome.resolve(error)
