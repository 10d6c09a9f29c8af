"""Commits of offsets without a transaction, and the committed offsets of each group.

A commit is answered once its records are committed. Refused: unknown members, and commits of
another generation or member epoch. `transactional_offsets.py` has the commits of transactions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.commits import DecidedCommit, decide_commit, stranger_refusal
from quorumlog.broker.groups.core.consumer_groups import ConsumerGroups
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.requests import CommitOffsets, CommittedOffset
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """Serves the commits and the offsets of all groups. Has no state of its own."""

    _settings: BrokerSettings
    _outbox: GroupOutbox
    _committed: CommittedState
    _transactional: TransactionalOffsets
    _classic: ClassicGroups
    _consumer: ConsumerGroups

    def handle(self, now_ms: int, request_id: int, request: CommitOffsets) -> None:
        """Write the offsets if the group accepts the commit; answer once they are committed."""
        error_code = self._refusal(now_ms, request)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        commit = decide_commit(request, self._settings, now_ms)
        if commit.records:
            self._write(request_id, commit)
        else:
            self._outbox.reply(request_id, commit.result())

    def _refusal(self, now_ms: int, request: CommitOffsets) -> ErrorCode:
        refusal = self._consumer.commit_refusal(request)
        if refusal is not None:
            return refusal
        group = self._classic.groups.get(request.group_id)
        if group is None:
            has_offsets = bool(self._transactional.partitions(request.group_id))
            return stranger_refusal(request.generation_id, has_offsets=has_offsets)
        if request.generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        return self._classic.protocol.commit_refusal(group, now_ms, request)

    def _write(self, request_id: int, commit: DecidedCommit) -> None:
        def done(_now_ms: int, error_code: ErrorCode) -> None:
            self._outbox.reply(request_id, commit.result(error_code))

        self._outbox.append(commit.records, done)

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset | None]:
        """Return the committed offset of each partition; `partitions` None: all offsets."""
        offsets = self._committed.offsets.get(group_id, {})
        if partitions is None:
            return dict(sorted(offsets.items()))
        return {where: offsets.get(where) for where in partitions}
