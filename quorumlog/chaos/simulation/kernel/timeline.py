"""The future events of a run: one heap, one clock, integer microseconds. Its trace: the past ones.

Nothing here depends on the order of a set, an address or a hash: equal pushes give equal runs.
"""

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from heapq import merge
from itertools import count
from typing import Any, Final, NamedTuple

from quorumlog.chaos.simulation.kernel.rules import Violation

EVENTS_AT_ONE_INSTANT_MAX: Final = 20_000
"""A correct run has at most a few hundred: more means that time will never go on."""


class Timeline:
    """The future events in order of time; those of the same time in order of `push`."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0

    def push(self, after_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` after so many microseconds."""
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_us + after_us, self._pushed, action, arguments))

    def run(self) -> None:
        """Run until no event is left.

        Raises the exception of an action, and Violation if the events of one instant do not end:
        the processes then keep each other, or themselves, busy for ever.
        """
        heap, pop = self._heap, heapq.heappop
        first_of_instant = self.events
        while heap:
            at_us, _, action, arguments = pop(heap)
            if at_us != self.now_us:
                self.now_us, first_of_instant = at_us, self.events
            elif self.events - first_of_instant > EVENTS_AT_ONE_INSTANT_MAX:
                raise Violation(
                    f"progress: more than {EVENTS_AT_ONE_INSTANT_MAX} events at {at_us / 1000} ms"
                )
            self.events += 1
            action(*arguments)

    def stop(self) -> None:
        """Forget all that is to happen: the run ends."""
        self._heap.clear()


STEPS_MAX: Final = 60
FAULTS_MAX: Final = 20


class _Line(NamedTuple):
    number: int
    now_us: int
    whom: str
    render: Callable[..., str]
    arguments: tuple[object, ...]


class Trace:
    """Equal runs have equal digests. The last steps and the last faults are kept for `lines`."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._numbers = count()
        self._steps = deque[_Line](maxlen=STEPS_MAX)
        self._faults = deque[_Line](maxlen=FAULTS_MAX)

    @property
    def digest(self) -> str:
        """A fingerprint of every step so far, as hexadecimal digits."""
        return self._digest.hexdigest()

    def stepped(
        self,
        now_us: int,
        node_id: int,
        outline: bytes,
        render: Callable[..., str],
        *arguments: object,
    ) -> None:
        """Note a step of a node. `outline` goes into the digest.

        `render(*arguments)` is the step for a person. It is called only if the run fails, so its
        arguments must not change afterwards.
        """
        self._digest.update(b"%d %d %b\n" % (now_us, node_id, outline))
        self._steps.append(_Line(next(self._numbers), now_us, str(node_id), render, arguments))

    def happened(self, now_us: int, whom: str, what: str) -> None:
        """Record an event that no core has decided: a fault, a start. Not part of the digest."""
        self._faults.append(_Line(next(self._numbers), now_us, whom, str, (what,)))

    def lines(self) -> tuple[str, ...]:
        """Return the last lines: the time in ms, the node, the event there."""
        lines = merge(self._faults, self._steps, key=lambda line: line.number)
        return tuple(
            f"{line.now_us / 1000:10.3f} {line.whom}: {line.render(*line.arguments)}"
            for line in lines
        )
