"""One exchange of tokens by a SASL mechanism: its steps, and their outcomes.

An exchange gets the tokens of one client in their order. It decides; it does not send. `message`
of a Rejected goes to the client: it is one fixed sentence, whatever was wrong with the credentials.
`reason` is for the log of the broker alone.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The client must send another token."""

    token: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticated:
    """The client is `user`. `expires_ms`: ms since 1970; None: its credentials do not expire."""

    user: str
    token: bytes = b""
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The client is not authenticated. `message` None: the general sentence of the session."""

    reason: str
    message: str | None = None


Outcome: TypeAlias = Challenge | Authenticated | Rejected


class Exchange(Protocol):
    """The server's part of one authentication."""

    def receive(self, token: bytes, wall_ms: int) -> Outcome:
        """Return the outcome of a client's token at this time (ms since 1970)."""


def other_user(user: str, authorization_id: str) -> Rejected:
    """Return the rejection of a client that acts for another user, as Kafka words it."""
    return Rejected(
        reason=f"{user!r} requested the authorization id {authorization_id!r}",
        message="Authentication failed: Client requested an authorization id that is different "
        "from username",
    )
