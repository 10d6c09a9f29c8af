"""The protocol of a sequential model: what one object answers if operations come one by one.

A model of your own is an object with these members; `quorumlog verify --model package.module:NAME`
judges a history by it. `wgl` then looks for an order of the operations that the model allows and
that keeps the order in real time. States must be hashable, and equal if nothing can tell them
apart. `step` must not change a state.

```python
class Register:
    name = "my-register"
    operations = frozenset({"read", "write"})
    reads = frozenset({"read"})
    initial = 0

    def step(self, state, call):
        value = call.values[0]
        return (value,) if call.f == "write" else (state,) if state == value else ()
```
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

State = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation as a model sees it.

    values: of its micro-operations, in order: numbers, texts, None, and tuples for lists (a map is
        a tuple of pairs, sorted). What the completion says; if it says nothing, what was meant.
    is_known: False if the outcome is unknown: what it returned is then unknown as well.
    """

    f: str
    values: tuple[Any, ...]
    is_known: bool = True


class Model(Protocol):
    """One object that many processes call.

    operations: every `f` that it has; a history with another one is refused.
    reads: those of them that change nothing. One of unknown outcome is left out.
    initial: the first state.
    """

    @property
    def name(self) -> str:
        """What `--model` and the verdict call it."""

    @property
    def operations(self) -> frozenset[str]:
        """See the class."""

    @property
    def reads(self) -> frozenset[str]:
        """See the class."""

    @property
    def initial(self) -> State:
        """See the class."""

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the states after `call`, if it may happen in `state` as it did; none if not."""


@runtime_checkable
class Guide(Protocol):
    """What a model may have besides, for a faster search. It never rules out what can happen."""

    def leads_to(self, state: Any, read: Call) -> bool:
        """Tell whether `read` may return what it did in `state`, or in one that builds on it.

        Operations that `serves` is true of need not be thought of.
        """

    def serves(self, call: Call, read: Call) -> bool:
        """Tell whether the state after `call`, whatever it was before, may lead to `read`."""
