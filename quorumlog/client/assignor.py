"""The division of a classic group's partitions: its members, and assignors of the user's own.

The leader of a group of the classic protocol runs one assignor for all members. A group uses only
an assignor that every member names, so all members must name the same. Sources: KIP-54, KIP-429
(cooperative), KIP-881 (racks).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from quorumlog.wire.codec.identifiers import TopicPartition

RebalanceProtocol = Literal["eager", "cooperative"]
"""Eager members revoke all partitions before they join; cooperative members only moved ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One member's subscription.

    instance_id: of a static member. rack: the member's `client_rack`, None if it has none.
    owned, generation_id: the partitions of the member's last assignment that it may keep, and the
        generation of that assignment; members send them for cooperative assignors and "sticky".
    """

    topics: tuple[str, ...]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    rack: str | None = None


Members = Mapping[str, Subscription]
"""The members' subscriptions, by member id."""
Partitions = Mapping[TopicPartition, frozenset[str]]
"""All partitions of the members' topics, sorted, each with the racks of its replicas.

The racks are empty unless a member has a rack.
"""
Assign = Callable[[Members, Partitions], Mapping[str, Iterable[TopicPartition]]]
"""Returns the partitions of each member. A member may be missing, a partition may not."""


@runtime_checkable
class Assignor(Protocol):
    """An assignor of the user's own, for `Consumer(assignor=...)`.

    `assign` must return every partition exactly once, for a member that subscribes to its topic:
    otherwise `poll` of the leader raises AssignorError, and members keep their partitions. It runs
    in a thread while heartbeats continue, for `max_poll_interval_ms` at most. With "cooperative",
    `assign` returns the final assignment too: the client leaves out a partition that its owner has
    yet to revoke, and the group rebalances again (KIP-429).
    """

    @property
    def name(self) -> str:
        """The name in the group's protocol: all members of the group must use the same."""

    @property
    def protocol(self) -> RebalanceProtocol:
        """Whether members keep their partitions while the group rebalances."""

    def assign(
        self, members: Members, partitions: Partitions, /
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Return the partitions of each member, by member id."""


class NamedAssignor(NamedTuple):
    """An assignor that is checked: built in, or of the user's own."""

    name: str
    protocol: RebalanceProtocol
    assign: Assign
    is_own: bool = True  # of the user: it may block or fail


def named_assignor(assignor: Assignor | Assign) -> NamedAssignor:
    """Return an assignor of the user's own; a function is eager, and named by its `__name__`.

    Raises TypeError or ValueError if it is no assignor, or has no valid name or protocol.
    """
    if isinstance(assignor, type):
        raise TypeError(f"an assignor is an object, not a class: {assignor.__name__}()")
    given: Any = assignor
    is_object = isinstance(assignor, Assignor)
    assign = given.assign if is_object else given
    if not callable(assign):
        raise TypeError(
            f"an assignor is a function, or has name, protocol and assign(members, partitions): not"
            f" {assignor!r}"
        )
    name = given.name if is_object else getattr(given, "__name__", None)
    if not isinstance(name, str) or not name or name == "<lambda>":
        raise ValueError(f"an assignor needs a name that all members of its group use: {name!r}")
    protocol: Any = given.protocol if is_object else "eager"
    if protocol not in {"eager", "cooperative"}:
        raise ValueError(
            f"the protocol of assignor {name!r} must be 'eager' or 'cooperative', not {protocol!r}"
        )
    return NamedAssignor(name, protocol, assign)
