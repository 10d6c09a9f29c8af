"""Additions that wait while their transactional id is busy: the duties of the coordinator.

They are made together when the pending change ends. After a fixed wait, no sooner
and no later, an addition is refused with an error to retry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quorumlog.broker.transactions.core.requests import AddPartitions
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.transactions import model as kips
from tests.support.transactions.clients import Asked, UnderWay
from tests.support.transactions.coordination import SETTINGS
from tests.support.transactions.model import Answer, Change, Model


@dataclass
class Window:
    """The waiting additions of one id, the first since `since_ms`."""

    since_ms: int
    request_ids: list[int] = field(default_factory=list)

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.since_ms + SETTINGS.hold_max_ms


class WaitingAdditions:
    def __init__(self, asked: Mapping[int, Asked]) -> None:
        self._asked = asked
        self._windows: dict[str, Window] = {}

    def add(self, now_ms: int, request_id: int, request: AddPartitions) -> None:
        window = self._windows.setdefault(request.transactional_id, Window(now_ms))
        window.request_ids.append(request_id)

    def clear(self) -> None:
        self._windows.clear()

    def end(self, name: str, model: Model | None, now_ms: int) -> UnderWay | None:
        """The id is not busy any more; return the one change that must follow, if one must."""
        window = self._windows.pop(name, None)
        made: list[int] = []
        after = model
        for request_id in () if window is None else window.request_ids:
            asked = self._asked[request_id]
            producer, partitions = asked.request.producer, asked.request.partitions
            verdict = kips.on_add(model, False, producer, partitions, now_ms)
            if isinstance(verdict, Answer):
                asked.expected = verdict
                continue
            made.append(request_id)
            together = kips.on_add(after, False, producer, partitions, now_ms)
            if isinstance(together, Change):
                after = together.after(0)
        if after is None or not made:
            return None
        change = Change(lambda _new: after, lambda _after: kips.FINE)
        return UnderWay(change, held=tuple(made))

    def may_begin_behind(self, name: str, completed: Model) -> bool:
        """Whether all that waits is of the producer that the end of the transaction leaves."""
        window = self._windows.get(name, Window(0))
        producers = {tuple(self._asked[one].request.producer) for one in window.request_ids}
        return completed.phase == "idle" and producers == {completed.producer}

    def hear(self, request_id: int, asked: Asked, error_code: ErrorCode, now_ms: int) -> bool:
        """Return whether a request that is answered has waited until now."""
        window = self._windows.get(asked.request.transactional_id)
        if window is None or request_id not in window.request_ids:
            return False
        window.request_ids.remove(request_id)
        if error_code is ErrorCode.CONCURRENT_TRANSACTIONS:
            assert window.is_over(now_ms), "f: told to come again too soon"
        return True

    def check(self, now_ms: int, under_way: Mapping[str, UnderWay]) -> None:
        for window in self._windows.values():
            assert not (window.request_ids and window.is_over(now_ms)), "f: waits for too long"
        for change in under_way.values():
            assert change.after or not change.held, "f: what has waited was not woken"


def waits(request: Any, verdict: object) -> bool:
    is_told_apart = isinstance(request, AddPartitions) and request.client_transaction_version == 2
    return is_told_apart and verdict == kips.WAIT
