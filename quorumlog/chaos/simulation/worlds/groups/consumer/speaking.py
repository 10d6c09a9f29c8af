"""The interfaces between a member and its group protocol."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.groups.consumer.group_log import Named
from quorumlog.chaos.simulation.worlds.groups.consumer.oracle import Client
from quorumlog.chaos.simulation.worlds.groups.consumer.topics import STABLE, TopicCatalogue
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import Moment
from quorumlog.wire.codec.error_codes import ErrorCode

REBALANCE_MS: Final = 1_500
NOT_THERE: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Errors after which the member looks for the coordinator again."""
OUT: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
"""Responses to a leaving member after which it is no member any more."""


class Subscription(NamedTuple):
    """Topic names and a regular expression ("": none); classic members use only the names."""

    names: tuple[str, ...]
    expression: str


SUBSCRIPTIONS: Final = (
    Subscription((STABLE,), ""),
    Subscription((STABLE, "more-a"), ""),
    Subscription((), f"{STABLE}|more-.*"),
    Subscription((STABLE,), "more-.*"),
)
CLASSIC_SUBSCRIPTIONS: Final = (
    Subscription((STABLE,), ""),
    Subscription((STABLE, "more-a", "more-b"), ""),
)


class Answered(NamedTuple):
    """A response, with the facts of its broker.

    moment: when the request was read. is_replaced: the broker did not lead any more.
    """

    result: Any
    moment: Moment
    is_replaced: bool


class Question(NamedTuple):
    """A request of a member about its membership."""

    request: Any
    answered: Callable[[Answered], None]
    timeout_us: int


class Life(Protocol):
    """A member, as its protocol sees it.

    led: the last generation that it led, with the partition counts of the topics; on its disk.
    """

    client: Client
    subscription: Subscription
    rng: Rng
    catalogue: TopicCatalogue
    led: tuple[int, Mapping[str, int]] | None

    def new_name(self) -> str:
        """Return a unique name."""

    def takes(self, answered: Answered, epoch: int, assigned: Partitions | None) -> None:
        """Apply the assignment of a ConsumerGroupHeartbeat response."""

    def syncs(self, answered: Answered, generation_id: int, named: Named) -> None:
        """Apply the assignment of a SyncGroup response."""

    def rests(self, answered: Answered) -> None:
        """Record that the member has nothing to revoke or to report."""

    def is_named(self, member_id: str) -> None:
        """Begin anew with this member id; "": the coordinator will assign one."""

    def loses_all(self) -> None:
        """Give up all partitions, and keep the member id."""

    def act_soon(self, *, after_us: int = ...) -> None:
        """Send the next request after `after_us`."""

    def look_for_coordinator(self) -> None:
        """Look for the coordinator before the next request."""


class Speaker(Protocol):
    """A protocol: chooses the next request of a member. Each life has a new one."""

    is_member: bool  # it may commit and fetch offsets

    def question(self) -> Question | None:
        """Return the request that is due now, or None."""

    def unanswered(self) -> None:
        """Handle the timeout of the last request."""

    def farewell(self, *, for_a_while: bool) -> Any:
        """Return the request by which the member leaves; None: it leaves without a request."""
