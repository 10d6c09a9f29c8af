"""Commits of a member for its partitions: by OffsetCommit, or within a transaction."""

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitResult,
    CommitTransactionalOffsets,
)
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.groups.transactions import TransactionCoordinator
from quorumlog.wire.codec.error_codes import ErrorCode

REQUEST_TIMEOUT_US: Final = 600_000
DECIDES_US: Final = 20_000  # how long EndTxn takes
ABORTS: Final = 0.15  # the chance that a member aborts a transaction that it could commit

Send = Callable[[Any, Callable[[], bool], Callable[[Any], None]], None]
Take = Callable[..., None]
CommitT = TypeVar("CommitT")
CommitT_contra = TypeVar("CommitT_contra", contravariant=True)


class CommitOracle(Protocol[CommitT_contra]):
    """The oracle of commits."""

    def began(self, commit: CommitT_contra) -> None:
        """Note that a commit counts only if its transaction is committed."""

    def decided(self, commit: CommitT_contra) -> None:
        """Note that the transaction of a commit is committed."""

    def acknowledge(self, commit: CommitT_contra) -> None:
        """Note that a commit was acknowledged."""


class Commits(Generic[CommitT]):
    """The commits of a member, at most one under way. Without `transactions`: OffsetCommit.

    With them each commit is a transaction of its own, acknowledged by the decision to commit it:
    the marker, which makes the offsets visible, comes later.
    """

    def __init__(
        self,
        machine: Machine,
        oracle: CommitOracle[CommitT],
        rng: Rng,
        *,
        send: Send,
        take: Take,
        transactions: TransactionCoordinator | None,
    ) -> None:
        self.acknowledged = 0
        self.is_under_way = False
        self._machine: Final = machine
        self._oracle: Final = oracle
        self._rng: Final = rng
        self._send: Final = send
        self._take: Final = take
        self._transactions: Final = transactions
        self._connection = 0
        self._producer_id: Final = machine.node_id

    def boot(self) -> None:
        """Reset the state for a new process."""
        self._connection += 1
        self.is_under_way = False
        if self._transactions is not None:
            self._transactions.init(self._producer_id)

    def commit(self, commit: CommitT, request: CommitOffsets) -> None:
        """Send a commit once; after a timeout give it up and close the connection."""
        if self._transactions is None:
            self._ask(request, lambda result: self._answered(commit, result), self._give_up)
            return
        epoch = self._transactions.begin(self._producer_id)
        if epoch is None:
            return
        transactional = CommitTransactionalOffsets(
            group_id=request.group_id,
            transactional_id=f"producer {self._producer_id}",
            producer_id=self._producer_id,
            producer_epoch=epoch,
            adds=self._transactions.bumps_epoch,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            offsets=request.offsets,
        )
        self._oracle.began(commit)

        def written(result: CommitResult) -> None:
            self._end(commit, epoch, is_written=_is_fine(result))

        self._ask(transactional, written, lambda: self._end(commit, epoch, is_written=False))

    def _ask(
        self, request: Any, answered: Callable[[CommitResult], None], timed_out: Callable[[], None]
    ) -> None:
        self._connection += 1
        connection, self.is_under_way = self._connection, True

        def is_open() -> bool:
            return self._connection == connection

        def close(then: Callable[..., None], *arguments: object) -> None:
            if is_open():
                self._connection += 1
                then(*arguments)

        self._machine.later(REQUEST_TIMEOUT_US, self._take, _named(close, "give_up"), timed_out)
        self._send(request, is_open, lambda result: close(answered, result))

    def _answered(self, commit: CommitT, result: CommitResult) -> None:
        self.is_under_way = False
        if _is_fine(result):
            self._acknowledge(commit)

    def _give_up(self) -> None:
        self.is_under_way = False

    def _end(self, commit: CommitT, epoch: int, *, is_written: bool) -> None:
        """End the transaction: commit it only if all its offsets were written."""
        transactions = self._transactions
        if transactions is None:
            return
        commits = is_written and self._rng.random() >= ABORTS
        is_committed = transactions.end(self._producer_id, epoch, commits=commits)
        if is_committed:
            self._oracle.decided(commit)
        connection = self._connection

        def decided() -> None:
            if self._connection == connection:
                self.is_under_way = False
                if is_committed:
                    self._acknowledge(commit)

        self._machine.later(DECIDES_US, self._take, decided)

    def _acknowledge(self, commit: CommitT) -> None:
        self._oracle.acknowledge(commit)
        self.acknowledged += 1


def _is_fine(result: CommitResult) -> bool:
    return {*result.partitions.values(), result.error_code} == {ErrorCode.NONE}


def _named(action: Callable[..., None], name: str) -> Callable[..., None]:
    """Give a step of the member a name in the trace."""
    action.__name__ = name
    return action
