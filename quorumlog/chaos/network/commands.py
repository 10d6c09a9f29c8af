"""The commands of a run to the process of its forwarders, as plain values for JSON."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from quorumlog.chaos.faults.links import EFFECTS, Effect, Link, LinkRule
from quorumlog.chaos.network.links import Route

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
