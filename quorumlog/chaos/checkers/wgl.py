"""The search for a linearization, for any model: Wing and Gong, with Lowe's memory of failures.

It walks through the completions in their order. Before each one, any of the open operations may
take effect, in any order that the model allows, and the completing operation must. A configuration
(the next completion, the open operations that have taken effect, the state) is visited once. A read
that agrees with the state takes effect at once: this loses no order. A model may define which
states can still lead to the values of a read (`model.Guide`); the search skips the others.

The cost grows with the length of a history, and exponentially with the number of operations open at
once, so a search has a budget of steps and of memory. If one of them is spent, the answer is
UNDECIDED. Sources: Wing and Gong, Testing and Verifying Concurrent Objects (1993); Lowe, Testing
for Linearizability (2017).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from sys import getsizeof
from typing import Any, Final

from quorumlog.chaos.checkers.model import Call, Guide, Model

_WAITING_SHOWN: Final = 6
_STATES_SHOWN: Final = 3
_READS_AHEAD: Final = 6
_CONFIGURATION_BYTES: Final = 250  # a tuple, its mask and its place in a set, without the state


class Answer(Enum):
    """Whether there is an order that explains a history."""

    YES = "linearizable"
    NO = "not linearizable"
    UNDECIDED = "the budget ended first"


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one search: steps (each may call `step`), and bytes of configurations."""

    steps: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Timed:
    """A call with the moments between which it took effect; `completed` is None if it is open."""

    call: Call
    invoked: int
    completed: int | None


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of a search.

    stuck: of NO, the first operation whose completion no order gets past.
    waiting: the operations that were open then.
    states: some possible states of the object at that point, in words.
    """

    answer: Answer
    steps: int
    stuck: int = -1
    waiting: tuple[int, ...] = ()
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stage:
    """One completion, of `op`, and all operations that are open before it."""

    op: int
    bit: int
    open: tuple[tuple[int, int], ...]  # operations and their bits; `op` is the last
    reads: tuple[tuple[int, int], ...]
    ahead: tuple[tuple[int, int], ...]  # `reads`, and the next ones to come, which have no bit yet


@dataclass(frozen=True, slots=True)
class _Server:
    """An operation that may serve a read: the stages at which it is open, and its bit there."""

    first: int
    last: int
    bit: int

    def is_to_come(self, place: int, mask: int) -> bool:
        """Return whether it has not taken effect yet."""
        return place < self.first or (place <= self.last and not mask & self.bit)


_Configuration = tuple[int, int, Any]  # the next stage, the bits of effective operations, the state


def search(model: Model, timed: Sequence[Timed], budget: Budget) -> Searched:
    """Search for an order of `timed`. Reads of unknown outcome must have been left out."""
    return _Search(model, timed).run(budget)


class _Search:
    """The configurations seen and to come; the last one found is the first one visited."""

    def __init__(self, model: Model, timed: Sequence[Timed]) -> None:
        self._model = model
        self._calls = [one.call for one in timed]
        self._stages = _stages(model, timed)
        self._steps = self._held_bytes = self._furthest = 0
        self._stack: list[_Configuration] = []
        self._seen: set[_Configuration] = set()
        self._states: dict[Any, Any] = {}  # equal states are held once
        self._furthest_states: list[Any] = []
        self._guide = model if isinstance(model, Guide) else None
        self._servers = self._servers_of_reads()
        self._found((0, 0, model.initial))

    def run(self, budget: Budget) -> Searched:
        """Visit configurations until one is the end, none is left, or the budget ends."""
        while self._stack:
            place, mask, state = self._stack.pop()
            while place < len(self._stages) and mask & self._stages[place].bit:
                mask ^= self._stages[place].bit
                place += 1
            if place == len(self._stages):
                return Searched(Answer.YES, self._steps)
            mask = self._with_reads(place, mask, state)
            self._note(place, state)
            for configuration in self._following(place, mask, state):
                self._found(configuration)
            if self._steps > budget.steps or self._held_bytes > budget.held_bytes:
                return Searched(Answer.UNDECIDED, self._steps)
        stuck = self._stages[self._furthest]
        waiting = tuple(op for op, _ in (*stuck.open, *stuck.reads) if op != stuck.op)
        states = tuple(_words(state) for state in self._furthest_states)
        return Searched(Answer.NO, self._steps, stuck.op, waiting[:_WAITING_SHOWN], states)

    def _with_reads(self, place: int, mask: int, state: Any) -> int:
        """Return the mask with all open reads that agree with the state."""
        for op, bit in self._stages[place].reads:
            if not mask & bit:
                self._steps += 1
                if state in self._model.step(state, self._calls[op]):
                    mask |= bit
        return mask

    def _following(self, place: int, mask: int, state: Any) -> list[_Configuration]:
        stage = self._stages[place]
        if mask & stage.bit:
            return [(place + 1, mask ^ stage.bit, state)]
        self._steps += len(stage.open)
        return [
            (place, mask | bit, after)
            for op, bit in stage.open
            if not mask & bit
            for after in self._model.step(state, self._calls[op])
            if not self._is_hopeless(place, mask | bit, after)
        ]

    def _is_hopeless(self, place: int, mask: int, state: Any) -> bool:
        """Return whether some read has values that no state after this one can give."""
        return self._guide is not None and any(
            not mask & bit
            and not self._guide.leads_to(state, self._calls[op])
            and not any(one.is_to_come(place, mask) for one in self._servers[op])
            for op, bit in self._stages[place].ahead
        )

    def _servers_of_reads(self) -> dict[int, list["_Server"]]:
        """Return for each read the operations that may restore the values that it returned."""
        if self._guide is None:
            return {}
        spans: dict[int, _Server] = {}
        reads: set[int] = set()
        for place, stage in enumerate(self._stages):
            for op, bit in stage.open:
                first = spans[op].first if op in spans else place
                spans[op] = _Server(first, place, bit)
            reads |= {op for op, _ in stage.ahead}
        return {
            read: [
                span
                for op, span in spans.items()
                if self._guide.serves(self._calls[op], self._calls[read])
            ]
            for read in reads
        }

    def _found(self, configuration: _Configuration) -> None:
        place, mask, state = configuration
        if state not in self._states:
            self._states[state] = state
            self._held_bytes += getsizeof(state)
        configuration = (place, mask, self._states[state])
        if configuration not in self._seen:
            self._held_bytes += _CONFIGURATION_BYTES
            self._seen.add(configuration)
            self._stack.append(configuration)

    def _note(self, place: int, state: Any) -> None:
        """Store the furthest stage, and some states that were possible there."""
        if place > self._furthest:
            self._furthest, self._furthest_states = place, []
        states = self._furthest_states
        if place == self._furthest and len(states) < _STATES_SHOWN and state not in states:
            states.append(state)


def _stages(model: Model, timed: Sequence[Timed]) -> list[_Stage]:
    """Return the completions in order. A bit is used again when its operation has completed."""
    is_read = [one.call.f in model.reads for one in timed]
    opened: dict[int, int] = {}  # operation -> bit, of the open operations; in order of invocation
    free: list[int] = []
    stages = []
    to_come = deque(op for _, op, begins in sorted(_events(timed)) if begins and is_read[op])
    for _, op, begins in sorted(_events(timed)):
        if begins:
            if is_read[op]:
                to_come.popleft()
            opened[op] = free.pop() if free else 1 << len(opened)
            continue
        bit = opened.pop(op)
        acting = [(other, its) for other, its in opened.items() if not is_read[other]]
        reads = [(other, its) for other, its in opened.items() if is_read[other]]
        (reads if is_read[op] else acting).append((op, bit))
        ahead = [*reads, *((read, 0) for read in islice(to_come, _READS_AHEAD))]
        stages.append(_Stage(op, bit, tuple(acting), tuple(reads), tuple(ahead)))
        free.append(bit)
    return stages


def _events(timed: Sequence[Timed]) -> Iterator[tuple[int, int, bool]]:
    for op, one in enumerate(timed):
        yield one.invoked, op, True
        if one.completed is not None:
            yield one.completed, op, False


def _words(state: Any) -> str:
    text = repr(state)
    return text if len(text) <= 80 else f"{text[:77]}..."
