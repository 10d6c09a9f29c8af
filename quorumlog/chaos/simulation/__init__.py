"""Real cores and logs on one heap, one clock and one seed: a kernel and several worlds."""

from quorumlog.chaos.simulation.running import SimulationResult, replay, shrink, simulate
from quorumlog.chaos.simulation.worlds.registry import WORLDS

__all__ = ["WORLDS", "SimulationResult", "replay", "shrink", "simulate"]
