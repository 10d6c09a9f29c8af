"""When the core of a simulated node is due, and the writes that stop its time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog, describe

_ROUNDING_MS: Final = 2


class Ticks:
    """Feeds `Ticked` when the quorum's deadline has come."""

    def __init__(
        self,
        machine: Machine,
        quorum: Callable[[], Quorum],
        feed: Callable[[events.Event], None],
    ) -> None:
        self._machine: Final = machine
        self._quorum: Final = quorum
        self._feed: Final = feed
        self._at_us = -1  # when the next one is due; -1: none is scheduled

    def forget(self) -> None:
        """Begin a new life of the process: none is scheduled."""
        self._at_us = -1

    def schedule(self) -> None:
        """Schedule the next one, unless it comes anyway."""
        deadline_ms = self._quorum().next_deadline_ms()
        if deadline_ms is None:
            return
        after_us = self._machine.until_us(deadline_ms)
        at_us = self._machine.timeline.now_us + after_us
        if self._at_us < 0 or at_us < self._at_us:
            self._at_us = at_us
            self._machine.later(after_us, self._tick, at_us)

    def _tick(self, at_us: int) -> None:
        if self._at_us != at_us:
            return  # another one was scheduled before it
        self._at_us = -1
        deadline_ms = self._quorum().next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._machine.now_ms():
            self._feed(events.Ticked())
        else:
            self.schedule()


def waits_for(effect: effects.Effect, log: MetadataLog, responses: Mapping[int, bytes]) -> bool:
    """Tell whether a driver waits for this effect. `responses`: what was fetched, by request."""
    match effect:
        case effects.AppendFetched(request_id=request_id):
            _, fetched = describe(responses[request_id])
            return log.starts_epoch(fetched)
        case (
            effects.PersistElection()
            | effects.AppendLeaderChange()
            | effects.AppendVoters()
            | effects.TruncateLog()
            | effects.AppendSnapshot()
        ):
            return True
        case _:
            return False


class Writes:
    """The writes of the step whose effects are performed."""

    def __init__(self, machine: Machine, quorum: Callable[[], Quorum]) -> None:
        self.is_under_way = False
        self._machine: Final = machine
        self._quorum: Final = quorum
        self._began_ms = self._ended_ms = 0
        self._left_ms: int | None = None  # from the step to the deadline of the quorum
        self._is_first = True  # of the step

    def forget(self) -> None:
        """Begin a new life of the process."""
        self.is_under_way, self._is_first = False, True

    def begin(self) -> None:
        """Note that a write begins."""
        self.is_under_way, self._began_ms = True, self._machine.now_ms()
        deadline_ms = self._quorum().next_deadline_ms()
        if self._is_first:
            self._left_ms = None if deadline_ms is None else deadline_ms - self._began_ms
        self._is_first = False

    def end(self) -> events.WriteEnded:
        """Note that it is done; return what the core must be told."""
        self.is_under_way, self._ended_ms = False, self._machine.now_ms()
        return events.WriteEnded(took_ms=self._ended_ms - self._began_ms)

    def check_deadline(self, inbox: Sequence[events.Event]) -> None:
        """Check, once the core has been told of all, that they have used up nothing of it."""
        if inbox and isinstance(inbox[0], events.WriteEnded):
            return  # another one of the same step
        self._is_first = True
        deadline_ms = self._quorum().next_deadline_ms()
        if deadline_ms is None or self._left_ms is None:
            return
        lost_ms = self._left_ms - (deadline_ms - self._ended_ms)
        rule = f"disk-time: {self._machine.node_id} loses {lost_ms} ms of a deadline by its writes"
        check(lost_ms <= _ROUNDING_MS, rule)
