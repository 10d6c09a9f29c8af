"""Planted bugs, which the lab must find: one file for each subject, and one list in `registry`.

`python -m quorumlog.chaos.mutants NAME` runs a node with the bug of this name. This module imports
nothing: help texts need the names alone.
"""

from typing import Final

FOR_PROCESSES: Final = (
    "high-watermark", "broken-invariant", "forgets-producers", "spoils-reads", "low-ends",
    "late-reads", "ignores-advances", "ages-sessions",
)  # fmt: skip
"""The mutants that only real processes run: see `processes`."""


def every_mutant() -> dict[str, str]:
    """Return the rule that each mutant breaks, by the name of the mutant."""
    from quorumlog.chaos.mutants.registry import EVERY

    return {name: mutant.breaks for name, mutant in EVERY.items()}


def mutant_module(name: str) -> str:
    """Return the module that runs as a node, with its first argument behind it.

    Raises ValueError with the existing names.
    """
    from quorumlog.chaos.mutants.registry import node_mutant

    return f"{__name__} {node_mutant(name).name}"


def mutant_of(module: str) -> str | None:
    """Return the mutant of a module of `mutant_module`; None for any other module."""
    package, _, name = module.partition(" ")
    return name if package == __name__ and name else None
