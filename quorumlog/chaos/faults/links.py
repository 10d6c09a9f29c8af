"""Links between the parties of a run, and the rules that a fault imposes on them. Pure data.

A party is a node, named by its id as text, or `clients`: all clients together. A link is directed:
the bytes from its source to its destination, requests and responses alike. Bytes on a cut link
wait, as they do under TCP, and arrive when the link is healed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

CLIENTS: Final = "clients"
Plane = Literal["all", "kafka", "control"]


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """The bytes from `source` to `destination`; `plane`: on all listeners, or on one kind."""

    source: str
    destination: str
    plane: Plane = "all"

    def __str__(self) -> str:
        return f"{self.source}->{self.destination}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes wait until the cut is healed, and arrive then."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Bytes arrive from `min_us` to `min_us + spread_us` later, in their order."""

    min_us: int
    spread_us: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """At most this many bytes arrive in a second."""

    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Every connection whose source dialled is reset now, and all of them again each `every_us`.

    `every_us` = 0: only once.
    """

    every_us: int = 0


@dataclass(frozen=True, slots=True)
class Refuse:
    """The source's new connections to the destination are refused."""


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A share of the requests of one kind is lost, and all that follows on its connection.

    `share_ppm` in millionths.
    """

    api: str
    share_ppm: int = 1_000_000


@dataclass(frozen=True, slots=True)
class DelayRequest:
    """Each request of one kind, and all later bytes of its connection, are late by `us`."""

    api: str
    us: int


@dataclass(frozen=True, slots=True)
class DropReply:
    """Requests of one kind are carried out; their connection is reset instead of the answer.

    The link is the one that the requests take. `share_ppm` in millionths of the requests.
    """

    api: str
    share_ppm: int = 1_000_000


After = Literal["refused", "appended"]
"""Whether the broker carries an answered request out: never, or before the error replaces the
response."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Requests of one kind are answered with an error, as their broker might answer them.

    The link is the one that the requests take; the rule counts the requests of all its links.
    error: a name of ErrorCode. topic, partition, client_id: "" and -1 match any. times: at most as
    many answers, 0: no limit. share_ppm: the share of the matching requests, in millionths.
    on_call: only that match, counted from 1; 0: each.
    """

    api: str
    error: str
    topic: str = ""
    partition: int = -1
    client_id: str = ""
    times: int = 0
    share_ppm: int = 1_000_000
    on_call: int = 0
    after: After = "refused"


@dataclass(frozen=True, slots=True)
class Observe:
    """Requests of one kind are counted; the link is the one that they take. See Answer."""

    api: str
    topic: str = ""
    partition: int = -1
    client_id: str = ""


Effect = (
    Cut | Delay | Rate | Reset | Refuse | DropRequest | DelayRequest | DropReply | Answer | Observe
)
EFFECTS: Final[frozenset[type[Effect]]] = frozenset(
    {Cut, Delay, Rate, Reset, Refuse, DropRequest, DelayRequest, DropReply, Answer, Observe}
)


OF_REQUESTS: Final[frozenset[type[Effect]]] = frozenset(
    {DropRequest, DelayRequest, DropReply, Answer, Observe}
)
"""The effects that pick requests: the bytes must be readable, so not encrypted by TLS."""


@dataclass(frozen=True, slots=True)
class LinkRule:
    """One effect on some links. Several rules may hold on a link; `id` names one of them."""

    id: str
    links: tuple[Link, ...]
    effect: Effect


def between(
    ones: Iterable[str], others: Iterable[str], direction: Literal["in", "out", "both"] = "both"
) -> tuple[Link, ...]:
    """Return the links between two sets of parties: `out` of `ones`, `in` to them, or both."""
    targets = sorted(others)
    links: list[Link] = []
    for one in sorted(ones):
        for other in targets:
            if one == other:
                continue
            links += [Link(one, other)] if direction != "in" else []
            links += [Link(other, one)] if direction != "out" else []
    return tuple(dict.fromkeys(links))
