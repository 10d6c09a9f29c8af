"""damage: files of a node that is down are damaged, as a disk or a person does it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import NODE_ROLES, AnyStep, Scene, Step, StepFault, named

KINDS: Final = (
    "log_bit", "log_cut", "metadata_cut", "metadata_gone", "checkpoint_gone", "index_bit",
    "index_gone", "metadata_bit",
)  # fmt: skip
"""The damages. They travel as the amount of a step: their places here."""
AMOUNTS: Final[Mapping[str, int]] = {kind: place for place, kind in enumerate(KINDS)}


@named(
    "damage",
    "SIGKILL a node, damage a file of one of its partitions, start it again after a while",
    targets=NODE_ROLES,
)
class Damage(StepFault):
    """A file in a log directory of a node that is down gets worse.

    what: a bit of a log is flipped; a log is cut; the `partition.metadata` of a log is cut,
    gone, or has a bit flipped; a checkpoint is gone; a bit of an index is flipped, or an index is
    gone. `any`: one of these, chosen at random.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "damage", "start"})
    breaks: ClassVar[str] = "kill"
    what: Literal[
        "any", "log_bit", "log_cut", "metadata_cut", "metadata_gone", "checkpoint_gone",
        "index_bit", "index_gone", "metadata_bit",
    ] = "any"  # fmt: skip

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """End the victims, then damage a file of each."""
        what: str = self.what
        if what == "any":
            what = KINDS[scene.rng.randrange(0, len(KINDS))]
        return (
            Step(operation=self.breaks, node_ids=scene.victims),
            Step(operation="damage", node_ids=scene.victims, amount=AMOUNTS[what]),
        )


@named(
    "damage_closed",
    "stop a node in order, damage a file of one of its partitions, start it again after a while",
    targets=NODE_ROLES,
)
class DamageClosed(Damage):
    """The same after an orderly stop: a log that was closed is not looked through at its start."""

    needs: ClassVar[frozenset[str]] = frozenset({"stop", "damage", "start"})
    breaks: ClassVar[str] = "stop"


FAULTS: Final = (Damage, DamageClosed)
