"""The calls on a node's files that a fault of its disk lets fail. Pure data.

The bits are those of `chaos/shim/faulty_calls.c`, and travel as the amount of a step.
"""

from collections.abc import Mapping
from typing import Final

READS: Final = 1
WRITES: Final = 2
SYNCS: Final = 4
NAMES: Final = 8  # to open, create, rename or remove a file

CALLS: Final[Mapping[str, int]] = {
    "all": READS | WRITES | SYNCS | NAMES,
    "reads": READS,
    "writes": WRITES | SYNCS,
    "syncs": SYNCS,
}
