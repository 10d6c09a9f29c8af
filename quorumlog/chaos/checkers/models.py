"""The sequential models that come with the lab: see `model` for their contract."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.chaos.checkers.model import Call, Model, State
from quorumlog.chaos.history.model import DONE

TOPICS: Final = "topics"
CAS_REFUSED: Final = "cas_refused"  # a compare-and-set that found another value than this one


@dataclass(frozen=True, slots=True)
class Register:
    """read V, write V; with `has_cas`: cas (V, W), and cas_refused V: the value was not V."""

    name: str
    has_cas: bool
    initial: State = None
    reads: frozenset[str] = frozenset({"read", CAS_REFUSED})

    @property
    def operations(self) -> frozenset[str]:
        """Reads and writes; compare-and-sets only with `has_cas`."""
        plain = frozenset({"read", "write"})
        return plain | {"cas", CAS_REFUSED} if self.has_cas else plain

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the value after the call."""
        value = call.values[0]
        match call.f:
            case "write":
                return (value,)
            case "cas":
                return (call.values[1],) if state == value else ()
            case "cas_refused":
                return (state,) if state != value else ()
            case _:
                return (state,) if state == value else ()

    def leads_to(self, state: Any, read: Call) -> bool:
        """Return whether the state has the value: a value stays until it is overwritten."""
        return read.f == CAS_REFUSED or bool(state == read.values[0])

    def serves(self, call: Call, read: Call) -> bool:
        """Return whether the call writes the value that was read."""
        return bool(call.values[-1] == read.values[0])


@dataclass(frozen=True, slots=True)
class KeyValue:
    """put TEXT, append TEXT, get TEXT, on a text that is empty at first."""

    name: str = "kv"
    operations: frozenset[str] = frozenset({"get", "put", "append"})
    reads: frozenset[str] = frozenset({"get"})
    initial: State = ""

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the text after the call."""
        value = call.values[0]
        match call.f:
            case "put":
                return (value,)
            case "append":
                return (state + value,)
            case _:
                return (state,) if state == (value or "") else ()

    def leads_to(self, state: Any, read: Call) -> bool:
        """Return whether the state is a prefix of the text read: a text grows at its end."""
        return bool((read.values[0] or "").startswith(state))

    def serves(self, call: Call, read: Call) -> bool:
        """Return whether the call is a put of a prefix of the text that was read."""
        return call.f == "put" and bool((read.values[0] or "").startswith(call.values[0]))


@dataclass(frozen=True, slots=True)
class Mutex:
    """acquire, release; the state is whether the mutex is held."""

    name: str = "mutex"
    operations: frozenset[str] = frozenset({"acquire", "release"})
    reads: frozenset[str] = frozenset()
    initial: State = False

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return whether it is held after the call."""
        acquires = call.f == "acquire"
        return (acquires,) if state != acquires else ()


@dataclass(frozen=True, slots=True)
class GrowingSet:
    """add V, read (all values, in any order)."""

    name: str = "linearizable-set"
    operations: frozenset[str] = frozenset({"add", "read"})
    reads: frozenset[str] = frozenset({"read"})
    initial: State = frozenset()

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the values after the call."""
        if call.f == "add":
            return (state | {call.values[0]},)
        return (state,) if state == frozenset(call.values[0] or ()) else ()


@dataclass(frozen=True, slots=True)
class Counter:
    """add N, read N: every read returns the sum of the adds before it."""

    name: str = "linearizable-counter"
    operations: frozenset[str] = frozenset({"add", "read"})
    reads: frozenset[str] = frozenset({"read"})
    initial: State = 0

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the sum after the call."""
        value = call.values[0]
        if call.f == "add":
            return (state + value,)
        return (state,) if state == value else ()


@dataclass(frozen=True, slots=True)
class UnorderedQueue:
    """enqueue V, dequeue V: each value comes out once, after it was put in, in any order."""

    name: str = "unordered-queue"
    operations: frozenset[str] = frozenset({"enqueue", "dequeue"})
    reads: frozenset[str] = frozenset()
    initial: State = ()  # its values, sorted by their texts

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the values after the call; a dequeue of unknown outcome may take any of them."""
        if call.f == "enqueue":
            return (tuple(sorted((*state, call.values[0]), key=repr)),)
        taken = [call.values[0]] if call.is_known else sorted({*state}, key=repr)
        return tuple(_without(state, value) for value in taken if value in state)


@dataclass(frozen=True, slots=True)
class FifoQueue:
    """enqueue V, dequeue V: the first in is the first out."""

    name: str = "fifo-queue"
    operations: frozenset[str] = frozenset({"enqueue", "dequeue"})
    reads: frozenset[str] = frozenset()
    initial: State = ()

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the values after the call; a dequeue of unknown outcome took the first."""
        if call.f == "enqueue":
            return ((*state, call.values[0]),)
        if state and (not call.is_known or state[0] == call.values[0]):
            return (state[1:],)
        return ()


def _without(state: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    place = state.index(value)
    return (*state[:place], *state[place + 1 :])


@dataclass(frozen=True, slots=True)
class TopicName:
    """create R, delete R: R is DONE, or REFUSED. The state is whether the topic exists.

    A refusal proves as much as a success: the topic existed, or did not, and not because of the
    refused change. A cluster that retries a change after a lost response fails this check, because
    it refuses a change that it made itself.
    """

    name: str = TOPICS
    operations: frozenset[str] = frozenset({"create", "delete"})
    reads: frozenset[str] = frozenset()
    initial: State = False

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return whether the topic exists after the call; () if the call is impossible."""
        wanted = call.f == "create"
        if call.is_known and (call.values[0] == DONE) == (state == wanted):
            return ()
        return (wanted,)


REGISTER: Final = Register("register", has_cas=False)
CAS_REGISTER: Final = Register("cas-register", has_cas=True)
MODELS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        REGISTER,
        CAS_REGISTER,
        KeyValue(),
        Mutex(),
        GrowingSet(),
        Counter(),
        UnorderedQueue(),
        FifoQueue(),
    )
}
"""By name. Registers whose values are written once are checked by `zones`."""
