"""Calls of interceptors: their log entries, and methods that nothing would await."""

import logging
from itertools import count
from typing import Any

import pytest

from quorumlog import clock
from quorumlog.client import Consumer, ConsumerInterceptor, ProducerInterceptor, ProducerRecord
from quorumlog.client.io import interception


def test_errors_and_slow_calls_are_logged_rarely(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = count()
    monkeypatch.setattr(clock, "monotonic_s", lambda: next(ticks) * 0.05)
    calls = interception.Interception("c")
    noting = ProducerInterceptor()
    calls.notify([noting.on_acknowledgement], ProducerRecord("t", b""), None, None)
    assert caplog.records == []  # two readings of the clock: 50 ms
    monkeypatch.setattr(clock, "monotonic_s", lambda: next(ticks) * 10.0)
    for _ in range(9):
        calls.notify([noting.on_acknowledgement], ProducerRecord("t", b""), None, None)
    slow = [one.getMessage() for one in caplog.records]
    assert slow[0] == (
        "c: interceptor ProducerInterceptor.on_acknowledgement took 10000 ms: it blocks the client"
    )
    assert 2 <= len(slow) <= 6
    assert "more times since the last entry" in slow[-1]
    assert all(one.levelno == logging.WARNING for one in caplog.records)


class Awaiting(ConsumerInterceptor):
    async def on_commit(self, offsets: Any) -> None:  # type: ignore[override]
        """Nothing would await it."""


def test_an_async_callable_is_refused() -> None:
    awaiting = Awaiting()
    with pytest.raises(TypeError, match=r"interceptors: Awaiting\.on_commit must not be async"):
        Consumer("x:1", interceptors=[awaiting])
    message = "value_deserializer must be a synchronous function or None"
    with pytest.raises(TypeError, match=message):
        Consumer("x:1", value_deserializer=awaiting.on_commit)
