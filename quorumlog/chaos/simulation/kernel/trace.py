"""What happened in a run: all of it as a digest, and the end of it for a person to read."""

import hashlib
from collections import deque
from heapq import merge
from itertools import count
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.worlds.quorum.rendering import render_event
from quorumlog.metadata_quorum.core.events import Event
from quorumlog.metadata_quorum.core.quorum import Quorum

STEPS_MAX: Final = 60
FAULTS_MAX: Final = 20


class _Line(NamedTuple):
    number: int
    now_us: int
    whom: str
    event: Event | None  # what it learned, if this is a step
    what: str  # its role, or what happened
    state: tuple[int, ...] = ()  # its epoch, log end, flushed offset and high watermark


class Trace:
    """Equal runs have equal digests. The last steps are kept as they were, and the last faults."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._numbers = count()
        self._steps = deque[_Line](maxlen=STEPS_MAX)
        self._faults = deque[_Line](maxlen=FAULTS_MAX)

    @property
    def digest(self) -> str:
        """What happened, in short."""
        return self._digest.hexdigest()

    def stepped(self, now_us: int, node_id: int, event: Event, quorum: Quorum) -> None:
        """Note that a node took in a fact, and what it is now."""
        role = type(quorum.role).__name__
        state = (
            quorum.leader_epoch,
            quorum.log_end_offset,
            quorum.flushed_offset,
            quorum.high_watermark,
        )
        self._digest.update(
            b"%d %d %s %s %d %d %d %d\n"
            % (now_us, node_id, type(event).__name__.encode(), role.encode(), *state)
        )
        self._steps.append(_Line(next(self._numbers), now_us, str(node_id), event, role, state))

    def happened(self, now_us: int, whom: str, what: str) -> None:
        """Note what no core has decided: a fault, a start. Not part of the digest."""
        self._faults.append(_Line(next(self._numbers), now_us, whom, None, what))

    def lines(self) -> tuple[str, ...]:
        """Return the last lines: time in ms, the node, what it learned, what it is."""
        lines = merge(self._faults, self._steps, key=lambda line: line.number)
        return tuple(map(_render, lines))


def _render(line: _Line) -> str:
    when = f"{line.now_us / 1000:10.3f} {line.whom}:"
    if line.event is None:
        return f"{when} {line.what}"
    epoch, end, flushed, committed = line.state
    state = f"epoch={epoch} end={end} flushed={flushed} committed={committed}"
    return f"{when} {render_event(line.event)} => {line.what} {state}"
