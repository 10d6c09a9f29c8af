"""Which links the requests of one kind take, for faults that pick them out."""

from collections.abc import Iterable
from typing import Literal

from quorumlog.chaos.faults.apis import Api
from quorumlog.chaos.faults.fault import Scene
from quorumlog.chaos.faults.links import CLIENTS, Link

Sender = Literal["target", "nodes", "clients"]
"""Whose requests: the target's own to all nodes, or those that others send to the target."""


def request_links(scene: Scene, api: Api, sender: Sender) -> tuple[Link, ...]:
    """Return the links on which the requests of this kind pass."""
    match sender:
        case "target":
            return _links(scene.parties, map(str, scene.all_nodes), api)
        case "nodes":
            return _links(map(str, scene.all_nodes), map(str, scene.victims), api)
        case "clients":
            return _links([CLIENTS], map(str, scene.victims or scene.all_nodes), api)


def _links(sources: Iterable[str], destinations: Iterable[str], api: Api) -> tuple[Link, ...]:
    targets = list(destinations)
    return tuple(
        Link(source, destination, api.plane)
        for source in sources
        for destination in targets
        if source != destination
    )
