"""Several nodes as the target of a fault: a minority, a majority, or all nodes of a rack.

`rack` is a random rack, `rack:b` the rack b. A rack is a domain of faults: its nodes share a switch
and a supply of power (KIP-36).
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from quorumlog.chaos.faults.fault import GROUPS, RACK

Racks = Mapping[str, tuple[int, ...]]
"""The nodes of each rack, by its name; empty: no node has a rack."""
NO_RACKS: Final[Racks] = MappingProxyType({})

_NAMED: Final = f"{RACK}:"


class Draws(Protocol):
    """A generator of random numbers: `random.Random` is one."""

    def choice(self, seq: Sequence[str], /) -> str:
        """Return one of them."""

    def sample(self, population: Sequence[int], /, k: int) -> list[int]:
        """Return `k` of them, each at most once."""


def is_rack(target: object) -> bool:
    """Return whether a target is a rack, random or named."""
    return isinstance(target, str) and (target == RACK or target.startswith(_NAMED))


def is_target(role: str, targets: Collection[str]) -> bool:
    """Return whether a role is one of `targets`; with RACK among them, every named rack is."""
    return role in targets or (RACK in targets and is_rack(role))


def require_rack(target: object, racks: Racks) -> None:
    """Raise ValueError, with the racks, for a target that is a rack that the cluster lacks."""
    if not is_rack(target):
        return
    if not racks:
        raise ValueError(
            f"target {target}: the cluster has no racks; --racks a,b,c gives them to a new cluster "
            "(racks= in Python)"
        )
    name = str(target).removeprefix(_NAMED)
    if target != RACK and name not in racks:
        raise ValueError(f"target {target}: the racks are {', '.join(sorted(racks))}")


def racks_of(rack_by_node: Mapping[int, str | None]) -> Racks:
    """Return the nodes of each rack, of `rack_by_node`: node id -> its rack, or None."""
    racks: dict[str, tuple[int, ...]] = {}
    for node_id, rack in sorted(rack_by_node.items()):
        if rack is not None:
            racks[rack] = (*racks.get(rack, ()), node_id)
    return racks


def is_group(target: str) -> bool:
    """Return whether a target is several nodes, some of which are drawn when the fault is due."""
    return target in GROUPS or is_rack(target)


def hit_group(
    target: str,
    node_count: int,
    racks: Racks,
    able: Sequence[int],
    *,
    avoid: Collection[int],
    rng: Draws,
) -> tuple[tuple[int, ...], str]:
    """Return the nodes of `able` to hit, and their role, of a target that `is_group`.

    Nodes of `avoid`, and their racks, are drawn only if there are too few others. `node_count`: all
    nodes. A named rack none of whose nodes is in `able` has no node to hit.
    """
    if is_rack(target):
        name = target.removeprefix(_NAMED) if target != RACK else _drawn(racks, able, avoid, rng)
        nodes = tuple(node_id for node_id in racks.get(name, ()) if node_id in able)
        return nodes, f"{_NAMED}{name}" if name else target
    size = node_count // 2 + 1 if target == "majority" else max(1, (node_count - 1) // 2)
    free = [node_id for node_id in able if node_id not in avoid]
    chosen = free if len(free) >= size else able
    return tuple(sorted(rng.sample(chosen, min(size, len(chosen))))), target


def _drawn(racks: Racks, able: Collection[int], avoid: Collection[int], rng: Draws) -> str:
    """Return the name of a random rack with a node in `able`; "": there is none."""
    found = [name for name in sorted(racks) if {*racks[name]} & {*able}]
    free = [name for name in found if not {*racks[name]} & {*avoid}]
    return rng.choice(free or found) if found else ""
