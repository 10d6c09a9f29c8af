"""The listener that accepted a connection, as the connection needs it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quorumlog.broker.server.api import BrokerContext, Client
from quorumlog.broker.server.stats import ServerStats
from quorumlog.broker.server.turns import Turns
from quorumlog.invariants import InvariantViolation

if TYPE_CHECKING:
    from quorumlog.broker.server.connection import Connection


class Acceptor(Protocol):
    """The listener that accepted a connection, as the connection needs it."""

    @property
    def context(self) -> BrokerContext:
        """The parts of the broker, for handlers."""

    @property
    def stats(self) -> ServerStats:
        """Counters that the connection adds to."""

    @property
    def turns(self) -> Turns:
        """The time limit of all requests in one turn of the event loop."""

    @property
    def on_fatal(self) -> Callable[[InvariantViolation], None]:
        """Ends the node: a handler has violated an invariant."""

    def note_refused(self, who: Client, reason: str, failure: BaseException | None = None) -> None:
        """Log why a request closed its connection, or the `failure` of its handler."""

    def opened(self, connection: "Connection") -> None:
        """Count a connection, or close it if there are too many."""

    def closed(self, connection: "Connection") -> None:
        """Stop counting the connection."""
