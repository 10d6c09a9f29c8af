"""The interface of every network of a run: it imposes rules on the links between parties."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

from quorumlog.chaos.faults.links import EFFECTS, Effect, Link, LinkRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The address where a link's source connects, and the target's address. `host:port` each."""

    link: Link  # its plane is `kafka` or `control`
    listen: str
    target: str


NetworkKind = Literal["proxy", "netns"]
"""Forwarders between the nodes, or namespaces of the kernel."""


class LinksFailed(Exception):
    """The network of a run has failed. One line to act on."""


class Links(Protocol):
    """The links of a run. The methods block for a moment."""

    def impose(self, rule: LinkRule) -> None:
        """Impose a rule. Raises LinksFailed."""

    def lift(self, rule_id: str) -> None:
        """Lift a rule. Raises LinksFailed."""


_EFFECTS: Final[Mapping[str, type[Effect]]] = {effect.__name__: effect for effect in EFFECTS}


def plain_routes(routes: Iterable[Route]) -> list[dict[str, Any]]:
    """Return the routes as plain values."""
    return [asdict(route) for route in routes]


def routes_of(plain: Iterable[Mapping[str, Any]]) -> list[Route]:
    """Return the routes of plain values."""
    return [
        Route(link=Link(**one["link"]), listen=one["listen"], target=one["target"]) for one in plain
    ]


def plain_rule(rule: LinkRule) -> dict[str, Any]:
    """Return the rule as plain values."""
    effect = {"kind": type(rule.effect).__name__, **asdict(rule.effect)}
    return {"id": rule.id, "links": [asdict(link) for link in rule.links], "effect": effect}


def rule_of(plain: Mapping[str, Any]) -> LinkRule:
    """Return the rule of plain values."""
    parameters = dict(plain["effect"])
    effect = _EFFECTS[parameters.pop("kind")](**parameters)
    return LinkRule(plain["id"], tuple(Link(**link) for link in plain["links"]), effect)
