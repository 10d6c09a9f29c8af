"""Faults that destroy, damage or replace the copies of a node."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import (
    MILLION,
    NODE_ROLES,
    ROLES,
    AnyStep,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)

KINDS: Final = (
    "log_bit", "log_cut", "metadata_cut", "metadata_gone", "checkpoint_gone", "index_bit",
    "index_gone", "metadata_bit",
)  # fmt: skip
"""The damages. They travel as the amount of a step: their places here."""
AMOUNTS: Final[Mapping[str, int]] = {kind: place for place, kind in enumerate(KINDS)}


@named("wipe", "SIGKILL a node and empty its log directory; it starts as a new node", targets=ROLES)
class Wipe(StepFault):
    """A disk is replaced: the node has a new directory id, and copies everything again.

    The back end waits until the cluster needs no copy of this node; if it never does, nothing is
    wiped. Two never overlap.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "wipe"})
    breaks: ClassVar[str] = "kill"
    destroys: ClassVar[bool] = True

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Kill, then wipe."""
        return (
            Step(operation="kill", node_ids=scene.victims),
            Step(operation="wipe", node_ids=scene.victims),
        )


@named(
    "wipe_majority",
    "control: SIGKILL every node, truncate half of the logs of most nodes, start these first",
    targets=("majority",),
)
class WipeMajority(StepFault):
    """Acknowledged records are lost, and a run must find that.

    The metadata log stays, so that the cluster works afterwards. The nodes with full copies stay
    down meanwhile: the controller sees that their processes are gone, so they leave each ISR in
    which others are left, and one that lacks records leads. Later the full copies are cut off to
    follow it. A directory that is wiped would be noticed (decision 12).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "lose_records"})
    breaks: ClassVar[str] = "kill"
    hits_others: ClassVar[bool] = True
    destroys: ClassVar[bool] = True
    is_control: ClassVar[bool] = True

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Destroy, and start those that lack records."""
        return (
            Step(operation="kill", node_ids=scene.running),
            Step(operation="lose_records", node_ids=scene.victims),
            Step(operation="start", node_ids=scene.victims),
        )

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the others."""
        return (Step(operation="start", node_ids=scene.running),)


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

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
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


@named(
    "old_directory",
    "copy the log directories of a node, later end it and restore the copy",
    targets=NODE_ROLES,
)
class OldDirectory(StepFault):
    """A backup of a volume, or a snapshot of a machine, is put back while the node is down.

    age_us: how long before that the copy was taken, in the same life of its process or in an
    earlier one. directories: of a node with several, all are put back, or the last one alone.
    The files of the metadata quorum stay as they are on a voter: this fault makes no voter without
    its past.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"copy_directories", "kill", "stop", "put_back", "put_back_one", "start"}
    )
    breaks: ClassVar[str] = "kill"
    age_us: int = ranged(0, 600 * MILLION, default=2 * MILLION)
    directories: Literal["all", "one"] = "all"
    end: Literal["kill", "stop"] = "kill"

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Copy, wait, end the victims, and put the copies back. A copy has the action's number."""
        copy = int(scene.action_id)
        put_back = "put_back" if self.directories == "all" else "put_back_one"
        return (
            Step(
                operation="copy_directories",
                node_ids=scene.victims,
                wait_us=self.age_us,
                amount=copy,
            ),
            Step(operation=self.end, node_ids=scene.victims),
            Step(operation=put_back, node_ids=scene.victims, amount=copy),
        )
