"""What a member and the protocol that it speaks know of each other."""

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
"""Look for the coordinator again."""
OUT: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
"""What is answered to a member that leaves: it is no member any more."""


class Subscription(NamedTuple):
    """Names, and an expression ("": none), of which a classic member takes the names alone."""

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
    """An answer, and what the world knows of it.

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
    """A member, as the protocol that it speaks sees it.

    led: the last generation that it led, and how many partitions the topics had: on its disk.
    """

    client: Client
    subscription: Subscription
    rng: Rng
    catalogue: TopicCatalogue
    led: tuple[int, Mapping[str, int]] | None

    def new_name(self) -> str:
        """Return a name that nothing else has."""

    def takes(self, answered: Answered, epoch: int, assigned: Partitions | None) -> None:
        """Take what a heartbeat of KIP-848 was told."""

    def syncs(self, answered: Answered, generation_id: int, named: Named) -> None:
        """Take what a SyncGroup was told."""

    def rests(self, answered: Answered) -> None:
        """Note that there is nothing to do."""

    def is_named(self, member_id: str) -> None:
        """Begin anew with this member id; "": it will be given one."""

    def loses_all(self) -> None:
        """Give all up, and keep the member id."""

    def act_soon(self, *, after_us: int = ...) -> None:
        """Speak again in a moment."""

    def look_for_coordinator(self) -> None:
        """Ask for the coordinator before the next request."""


class Speaker(Protocol):
    """A protocol: decides what a member says next. It is made anew with each life."""

    is_member: bool  # it may commit and fetch offsets

    def question(self) -> Question | None:
        """Return what to ask now; None: nothing."""

    def unanswered(self) -> None:
        """Note that the last question was not answered."""

    def farewell(self, *, for_a_while: bool) -> Any:
        """Return the request by which the member leaves; None: it goes without a word."""
