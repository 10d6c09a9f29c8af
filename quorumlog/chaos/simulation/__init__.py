"""The cores on one heap, one clock and one seed."""

from quorumlog.chaos.simulation.faults import FAULTS, check_schedule
from quorumlog.chaos.simulation.mutants import MUTANTS
from quorumlog.chaos.simulation.running import SimulationResult, shrink, simulate

__all__ = ["FAULTS", "MUTANTS", "SimulationResult", "check_schedule", "shrink", "simulate"]
