"""A planted bug in whole nodes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from quorumlog.chaos.simulation.worlds.storage_mutants import SOUND_STORAGE
from quorumlog.node.substitutes import Substitutes
from quorumlog.storage.io.disk import Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMutant:
    """One planted bug. `breaks`: the bug, in a sentence. `of`: the part of the product.

    disk: wraps a machine's disk in the disk that its node uses.
    """

    name: str
    of: str
    breaks: str
    substitutes: Substitutes
    disk: Callable[[Disk], Disk] = SOUND_STORAGE.disk


def node_mutants(
    of: str, rules: Mapping[str, str], made: Mapping[str, Substitutes]
) -> Iterator[NodeMutant]:
    """Yield the mutants of a part of the product. rules: by name; made: a node's parts, by name."""
    for name, rule in rules.items():
        yield NodeMutant(name=name, of=of, breaks=rule, substitutes=made[name])
