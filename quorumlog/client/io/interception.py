"""Calls the interceptors of one client, and logs their errors and slow calls."""

import logging
import reprlib
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from itertools import chain
from typing import Any, Final, TypeVar

from quorumlog import clock
from quorumlog.client.interceptors import AnyRecords, ConsumerInterceptor
from quorumlog.client.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    ProducerRecord,
    TopicPartition,
)
from quorumlog.client.settings import ConsumerSettings

T = TypeVar("T")
AnyRecord = ConsumerRecord[Any, Any]

_logger: Final = logging.getLogger(__name__)

SLOW_S: Final = 0.1  # a longer call delays heartbeats, fetches and sends noticeably
REPEATED_S: Final = 60.0  # the shortest time between two log entries about one cause
_FAILED: Final = object()


def overridden(interceptors: Sequence[Any], name: str, base: type) -> list[Callable[..., Any]]:
    """Return the method `name` of each interceptor whose class overrides the method of `base`.

    Raises TypeError if a method is async: nothing would await it.
    """
    methods = [
        getattr(one, name)
        for one in interceptors
        if getattr(type(one), name) != getattr(base, name)
    ]
    for method in filter(iscoroutinefunction, methods):
        raise TypeError(f"interceptors: {method.__qualname__} must not be async")
    return methods


def is_record(result: object) -> bool:
    """Return whether `on_send` may return this."""
    return isinstance(result, ProducerRecord)


def _are_records(result: object) -> bool:
    return isinstance(result, dict) and all(isinstance(one, list) for one in result.values())


class Interception:
    """The calls of one client's interceptors.

    An interceptor that raises is skipped, as in Java's clients (KIP-42): no record is lost to it.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id: Final = client_id
        self._logged_s: Final[dict[tuple[int, str, str], float]] = {}  # by cause: a few
        self._skipped: Final[dict[tuple[int, str, str], int]] = {}

    def chain(
        self, methods: Sequence[Callable[[T], T]], given: T, fits: Callable[[object], bool]
    ) -> T:
        """Return `given` after all methods, each of which gets the result of the one before.

        A result that does not fit is skipped.
        """
        for method in methods:
            result: Any = self._call(method, given)
            if fits(result):
                given = result
            elif result is not _FAILED:
                returned = f"returned {reprlib.repr(result)}, which has a wrong type: it is skipped"
                self._log(method, "returned", returned)
        return given

    def notify(self, methods: Sequence[Callable[..., None]], *arguments: object) -> None:
        """Call all methods."""
        for method in methods:
            self._call(method, *arguments)

    def _call(self, method: Callable[..., object], *arguments: object) -> object:
        began_s = clock.monotonic_s()
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; it is logged
            self._log(method, "raised", f"raised {error!r}: it is skipped", error)
            return _FAILED
        finally:
            took_s = clock.monotonic_s() - began_s
            if took_s >= SLOW_S:
                self._log(method, "slow", f"took {took_s * 1000:.0f} ms: it blocks the client")

    def _log(
        self, method: Callable[..., object], cause: str, text: str, error: Exception | None = None
    ) -> None:
        """Log the first time at once, and then a summary, at most every `REPEATED_S`."""
        owner = getattr(method, "__self__", None)
        name = getattr(method, "__name__", repr(method))
        key, now_s = (id(owner), name, cause), clock.monotonic_s()
        if now_s - self._logged_s.get(key, -REPEATED_S) < REPEATED_S:
            self._skipped[key] = self._skipped.get(key, 0) + 1
            return
        self._logged_s[key] = now_s
        skipped = self._skipped.pop(key, 0)
        more = f" ({skipped} more times since the last entry)" if skipped else ""
        level = logging.WARNING if error is None else logging.ERROR
        of = type(owner).__name__
        _logger.log(
            level,
            "%s: interceptor %s.%s %s%s",
            self._client_id,
            of,
            name,
            text,
            more,
            exc_info=error,
        )


class ConsumerInterception:
    """The interceptors of one consumer."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._interception: Final = Interception(settings.client_id)
        interceptors = settings.interceptors
        self._on_consume: Final = overridden(interceptors, "on_consume", ConsumerInterceptor)
        self._on_commit: Final = overridden(interceptors, "on_commit", ConsumerInterceptor)

    def consumed(self, records: AnyRecords) -> AnyRecords:
        """Return the records of a poll after `on_consume`, without empty lists."""
        if not records or not self._on_consume:
            return records
        intercepted = self._interception.chain(self._on_consume, records, _are_records)
        return {name: given for name, given in intercepted.items() if given}

    def consumed_record(self, record: AnyRecord) -> list[AnyRecord]:
        """Return the results of `on_consume` for one record: none if an interceptor drops it."""
        name = TopicPartition(record.topic, record.partition)
        return [*chain.from_iterable(self.consumed({name: [record]}).values())]

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Call `on_commit`."""
        self._interception.notify(self._on_commit, {**offsets})
