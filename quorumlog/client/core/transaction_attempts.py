"""Makes the attempts at a transactional producer's requests to its coordinators, one at a time.

Each attempt is a `Dispatch`, and a response counts only for the outstanding attempt. So a late or
duplicate response, also of an earlier transaction, changes nothing.
"""

from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.client.core.absences import listed
from quorumlog.client.core.transaction_requests import (
    ANY_BROKER,
    Abilities,
    AddOffsets,
    Answer,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorType,
    Dispatch,
    FindCoordinator,
    Reaction,
    TransactionRequest,
    name_of,
    reaction_to,
)
from quorumlog.client.core.transactions import Transactions
from quorumlog.client.errors import DEFINITE, KafkaError, denied
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode, known


class TransactionAttempts:
    """The coordinators that one producer's requests go to, and the times of their retries."""

    def __init__(self, settings: ProducerSettings, transactions: Transactions) -> None:
        self._transactions: Final = transactions
        self._own: Final = CoordinatorKey(
            CoordinatorType.TRANSACTION, transactions.transactional_id
        )
        self._coordinators: Final[dict[CoordinatorKey, int]] = {}
        self._outstanding: Dispatch | None = None
        self._failures = 0  # in a row
        self._retry_at_ms = 0.0
        self.why_repeated: str | None = None
        """The error for which the current request is retried; None if none is retried.

        A request includes the search for its coordinator.
        """
        self._backoff: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.metadata_retry_backoff_max_ms
        )

    def next(self, now_ms: float, *, is_quiet: bool) -> Dispatch | None:
        """Return the attempt to make now. `is_quiet`: no batch waits or is in flight."""
        if self._outstanding is not None or now_ms < self._retry_at_ms:
            return None
        request = self._transactions.wanted(is_quiet=is_quiet)
        if request is None:
            return None
        key = self._own
        if isinstance(request, CommitOffsets):
            key = CoordinatorKey(CoordinatorType.GROUP, request.group.group_id)
        broker_id = self._coordinators.get(key, ANY_BROKER)
        if broker_id == ANY_BROKER:
            request = FindCoordinator(coordinator=key)
        self._outstanding = Dispatch(broker_id=broker_id, request=request)
        return self._outstanding

    def wake_at_ms(self, now_ms: float) -> float:
        """Return when the next retry is due; `inf` if there is none."""
        is_waiting = self._outstanding is None and self._retry_at_ms > now_ms
        return self._retry_at_ms if is_waiting else float("inf")

    def handle_answer(
        self, now_ms: float, dispatch: Dispatch, answer: Answer, random_fraction: float
    ) -> None:
        """Handle the response to an attempt; `random_fraction` in [0, 1) spreads its retry."""
        if dispatch is not self._outstanding:
            return  # a late or duplicate response
        self._outstanding = None
        request = dispatch.request
        codes = {known(answer.error_code), *map(known, answer.partitions.values())}
        refused = sorted(codes - {ErrorCode.NONE})
        if not {*refused} <= DEFINITE:
            self._transactions.note_doubt(request, is_late=False)
        self._take(request, answer, is_refused=bool(refused))
        if not refused:
            self._failures, self._retry_at_ms = 0, 0.0
            if not isinstance(request, FindCoordinator):
                self.why_repeated = None
            return
        code = max(refused, key=lambda one: reaction_to(request, one).value)
        where = listed(name for name, its in answer.partitions.items() if its == code)
        message = self._message(request, code, answer.message, where)
        error = KafkaError(code, message, definite=True)
        self._handle_refusal(now_ms, request, reaction_to(request, code), error, random_fraction)

    def _message(
        self, request: TransactionRequest, code: ErrorCode, message: str, where: str
    ) -> str:
        """Return the message of a refusal; without a right it names the resource."""
        match code, request:
            case ErrorCode.TOPIC_AUTHORIZATION_FAILED, CommitOffsets():
                return denied(code, where, "READ")
            case ErrorCode.TOPIC_AUTHORIZATION_FAILED, _:
                return denied(code, where, "WRITE")
            case ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _:
                return denied(code, f"transactional id {self._own.key}", "WRITE")
            case ErrorCode.GROUP_AUTHORIZATION_FAILED, CommitOffsets(group=group):
                return denied(code, f"group {group.group_id}", "READ")
            case ErrorCode.GROUP_AUTHORIZATION_FAILED, AddOffsets(group_id=group_id):
                return denied(code, f"group {group_id}", "READ")
            case _:
                return message or where

    def handle_lost(
        self, now_ms: float, dispatch: Dispatch, error: KafkaError, random_fraction: float
    ) -> None:
        """Handle a lost response. `error` is definite if no byte of the request was written."""
        if dispatch is not self._outstanding:
            return
        self._outstanding = None
        request = dispatch.request
        if not error.definite:
            self._transactions.note_doubt(request, is_late=True)
        reaction = Reaction.MOVED if error.passing else reaction_to(request, error.code)
        self._handle_refusal(now_ms, request, reaction, error, random_fraction)

    def close(self, error: KafkaError) -> None:
        """Fail the producer: no attempt follows, and the waiting calls get `error`."""
        dispatch, self._outstanding = self._outstanding, None
        self.why_repeated = None
        if dispatch is not None:
            self._transactions.note_doubt(dispatch.request, is_late=True)
        self._transactions.close(error)

    def _take(self, request: TransactionRequest, answer: Answer, *, is_refused: bool) -> None:
        if not isinstance(request, FindCoordinator):
            self._transactions.take(request, answer, is_refused=is_refused)
        elif not is_refused:
            self._coordinators[request.coordinator] = answer.coordinator_id
            if request.coordinator == self._own:
                self._transactions.abilities = answer.abilities or Abilities()

    def _handle_refusal(
        self,
        now_ms: float,
        request: TransactionRequest,
        reaction: Reaction,
        error: KafkaError,
        random_fraction: float,
    ) -> None:
        if reaction not in {Reaction.RETRY, Reaction.MOVED}:
            self._failures, self._retry_at_ms, self.why_repeated = 0, 0.0, None
            self._transactions.react(request, reaction, error)
            return
        if reaction is Reaction.MOVED:
            key = self._own
            if isinstance(request, CommitOffsets):
                key = CoordinatorKey(CoordinatorType.GROUP, request.group.group_id)
            self._coordinators.pop(key, None)
        self._failures += 1
        self.why_repeated = f"{name_of(request)}: {error}"
        self._retry_at_ms = now_ms + self._backoff.delay_ms(self._failures, random_fraction)
