"""old_directory: an earlier copy of a node's log directories takes their place."""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import (
    MILLION,
    NODE_ROLES,
    AnyStep,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)


@named(
    "old_directory",
    "copy the log directories of a node, later end it and put the copy in their place",
    targets=NODE_ROLES,
)
class OldDirectory(StepFault):
    """A backup of a volume, or a snapshot of a machine, is put back while the node is down.

    age_us: how long before that the copy was taken, in the same life of its process or in an
    earlier one. directories: of a node with several, all are put back, or the last one alone.
    What the metadata quorum has on the disk stays as it is on a voter: a voter without its past is
    not part of this.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"copy_directories", "kill", "stop", "put_back", "put_back_one", "start"}
    )
    breaks: ClassVar[str] = "kill"
    age_us: int = ranged(0, 600 * MILLION, default=2 * MILLION)
    directories: Literal["all", "one"] = "all"
    end: Literal["kill", "stop"] = "kill"

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
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


FAULTS: Final = (OldDirectory,)
