"""The common part of the members of both group protocols: the polls, and the coordinator."""

from abc import ABC, abstractmethod
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.client.core.membership_events import Effect, Event, FindCoordinator
from quorumlog.client.settings import ConsumerSettings


class Member(ABC):
    """One member of one group."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings: Final = settings
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        self.coordinator_known = self.is_finding = False
        self.in_poll = False
        self._polled_ms = self._heartbeat_ms = self._find_ms = 0.0
        self._failures = 0
        self._backoff: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.retry_backoff_max_ms
        )

    @property
    def is_subscribed(self) -> bool:
        """True if the user has subscribed to topics or a pattern."""
        return bool(self.topics) or self.pattern is not None

    def step(self, now_ms: float, event: Event) -> list[Effect]:
        """Handle one event; return the effects, in order. Raises InvariantViolation."""
        effects = self._handle(now_ms, event)
        effects += self._advance(now_ms)
        self.check_invariants()
        return effects

    @abstractmethod
    def _handle(self, now_ms: float, event: Event) -> list[Effect]: ...

    @abstractmethod
    def _advance(self, now_ms: float) -> list[Effect]:
        """Return the effects that are due."""

    @abstractmethod
    def check_invariants(self) -> None:
        """Raise InvariantViolation with the number of the rule that does not hold."""

    def _poll_deadline_ms(self) -> float:
        if self.in_poll:
            return float("inf")
        return self._polled_ms + self.settings.max_poll_interval_ms

    def _find_coordinator(self, now_ms: float) -> list[Effect]:
        if self.is_finding or now_ms < self._find_ms:
            return []
        self.is_finding = True
        return [FindCoordinator()]
