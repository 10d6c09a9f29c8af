"""Every simulated world, by name: a new one is a package beside this file, and an entry."""

from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.registered import registered
from quorumlog.chaos.simulation.kernel.swarm import Hunt
from quorumlog.chaos.simulation.worlds.broker_worlds import BROKER_WORLDS
from quorumlog.chaos.simulation.worlds.drawn_faults import (
    LOG_FAULTS,
    QUORUM_FAULTS,
)
from quorumlog.chaos.simulation.worlds.logs.world import (
    BROKEN_RULES_OF_LOGS,
    build_logs,
    draw_log_options,
)
from quorumlog.chaos.simulation.worlds.quorum.building import (
    QUORUM_RULES,
    VOTER_RULES,
    build_quorum,
    build_voters,
)
from quorumlog.chaos.simulation.worlds.quorum.world import draw_quorum_options, draw_voters_options
from quorumlog.chaos.simulation.worlds.world_kind import WorldKind

_OF_THE_QUORUM: Final = (
    WorldKind(
        name="quorum",
        text="the metadata quorum: Raft as KIP-595 has it",
        faults=QUORUM_FAULTS,
        mutants=QUORUM_RULES,
        options=draw_quorum_options,
        hunt=Hunt(role="metadata-leader", files=("", "quorum-state")),
        build=build_quorum,
    ),
    WorldKind(
        name="voters",
        text="the metadata quorum while its voters change (KIP-853), and disks are lost",
        faults=QUORUM_FAULTS,
        mutants=VOTER_RULES,
        options=draw_voters_options,
        hunt=Hunt(role="metadata-leader", files=("", "quorum-state")),
        build=build_voters,
    ),
)
_OF_LOGS: Final = (
    WorldKind(
        name="logs",
        text="logs alone: retention, deletion of records, compaction, and crashes",
        faults=LOG_FAULTS,
        mutants=BROKEN_RULES_OF_LOGS,
        options=draw_log_options,
        hunt=Hunt(role="any", files=("", ".log", "-checkpoint")),
        build=build_logs,
    ),
)
WORLDS: Final[Mapping[str, WorldKind]] = {
    kind.name: kind for kind in (*_OF_THE_QUORUM, *BROKER_WORLDS, *_OF_LOGS)
}


def world_kind(name: str) -> WorldKind:
    """Return the kind of this name. Raises ValueError."""
    return registered(WORLDS, name, "world")
