"""Coordinators that break one rule of consumer groups each: the world must find them."""

from typing import Final

from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.groups.mutants import shards_of

CONSUMER_MUTANTS: Final = Mutants(shards_of)
