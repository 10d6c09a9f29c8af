"""The cores on one heap, one clock and one seed."""

from quorumlog.chaos.simulation.running import SimulationResult, shrink, simulate
from quorumlog.chaos.simulation.worlds.quorum.faults import FAULTS, check_schedule
from quorumlog.chaos.simulation.worlds.quorum.mutants import MUTANTS

__all__ = ["FAULTS", "MUTANTS", "SimulationResult", "check_schedule", "shrink", "simulate"]
