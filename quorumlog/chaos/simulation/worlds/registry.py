"""Every simulated world, by name: a new one is a package beside this file, and an entry."""

from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.mutants.quorum import QUORUMS
from quorumlog.chaos.mutants.retention import RETENTION
from quorumlog.chaos.mutants.storage import DAMAGED_LOGS, STORAGE
from quorumlog.chaos.mutants.voters import VOTERS
from quorumlog.chaos.registered import registered
from quorumlog.chaos.simulation.kernel.swarm import Hunt
from quorumlog.chaos.simulation.worlds.logs.world import LogsWorld, draw_log_options
from quorumlog.chaos.simulation.worlds.quorum.world import (
    QuorumWorld,
    draw_quorum_options,
    draw_voters_options,
)
from quorumlog.chaos.simulation.worlds.world_kind import LOG_FAULTS, QUORUM_FAULTS, WorldKind

_QUORUM_HUNT: Final = Hunt(role="metadata-leader", files=("", "quorum-state"))
_KINDS: Final = (
    WorldKind(
        name="quorum",
        text="the metadata quorum: Raft as KIP-595 has it",
        faults=QUORUM_FAULTS,
        mutants=QUORUMS | STORAGE,
        options=draw_quorum_options,
        hunt=_QUORUM_HUNT,
        build=QuorumWorld,
    ),
    WorldKind(
        name="voters",
        text="the metadata quorum while its voters change (KIP-853), and disks are lost",
        faults=QUORUM_FAULTS,
        mutants=VOTERS,
        options=draw_voters_options,
        hunt=_QUORUM_HUNT,
        build=QuorumWorld,
    ),
    WorldKind(
        name="logs",
        text="logs alone: retention, deletion of records, compaction, and crashes",
        faults=LOG_FAULTS,
        mutants=RETENTION | STORAGE | DAMAGED_LOGS,
        options=draw_log_options,
        hunt=Hunt(role="any", files=("", ".log", "-checkpoint")),
        build=LogsWorld,
    ),
)
WORLDS: Final[Mapping[str, WorldKind]] = {kind.name: kind for kind in _KINDS}


def world_kind(name: str) -> WorldKind:
    """Return the kind of this name. Raises ValueError."""
    return registered(WORLDS, name, "world")
