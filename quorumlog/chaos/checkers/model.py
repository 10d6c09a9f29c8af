"""The protocol of a sequential model: the results of one object if operations come one by one.

A model of your own is an object with these members; `quorumlog verify --model package.module:NAME`
checks a history against it. `wgl` then searches for an order of the operations that the model
allows and that keeps the order in real time. States must be hashable, and equal if no operation can
distinguish them. `step` must not change a state.

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
        a tuple of pairs, sorted). They are those of the completion if it has any, else those of the
        invocation.
    is_known: False if the outcome is unknown; the returned values are then unknown as well.
    """

    f: str
    values: tuple[Any, ...]
    is_known: bool = True


class Model(Protocol):
    """One object that many processes call.

    operations: every `f` that it has; a history with any other `f` is refused.
    reads: the operations that do not change the state. A read of unknown outcome is left out.
    initial: the first state.
    """

    @property
    def name(self) -> str:
        """The model's name in `--model` and in the verdict."""

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
        """Return the states after `call` in `state`; none if its values are impossible."""


@runtime_checkable
class Guide(Protocol):
    """Optional members of a model for a faster search. They never rule out a possible order."""

    def leads_to(self, state: Any, read: Call) -> bool:
        """Return whether `read` may have its values in `state`, or in a state that builds on it.

        It need not consider operations for which `serves` is true.
        """

    def serves(self, call: Call, read: Call) -> bool:
        """Return whether the state after `call`, from any state, may lead to `read`."""
