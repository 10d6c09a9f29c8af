"""The events of a run: all of them as a digest, and the last ones for a person to read."""

import hashlib
from collections import deque
from collections.abc import Callable
from heapq import merge
from itertools import count
from typing import Final, NamedTuple

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
