"""change_voters, replace_voter: the voters of the metadata quorum change (KIP-853)."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import AnyStep, Scene, Step, StepFault, named


@named("change_voters", "a controller is removed from the voters of the quorum, and added again")
class ChangeVoters(StepFault):
    """The active controller, too. kraft.version is raised to 1 first, and stays there.

    A removal of which nobody knows whether it was made is taken back like one that was made.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"remove_voter", "add_voter"})
    breaks: ClassVar[str] = "remove_voter"


@named(
    "replace_voter",
    "SIGKILL a controller, empty its log directory, and let it be another voter than before",
)
class ReplaceVoter(StepFault):
    """A disk is replaced: what the voter was is removed, and the node is added as it is now.

    As with `wipe`, the back end waits until the cluster needs nothing of this node.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"raise_kraft_version", "kill", "wipe", "start", "remove_voter", "add_voter"}
    )
    breaks: ClassVar[str] = "kill"
    destroys: ClassVar[bool] = True

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Kill, wipe, and remove what it was."""
        operations = ("raise_kraft_version", "kill", "wipe", "remove_voter")
        return tuple(Step(operation=one, node_ids=scene.victims) for one in operations)

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the node, and add it."""
        return tuple(Step(operation=one, node_ids=scene.victims) for one in ("start", "add_voter"))


FAULTS: Final = (ChangeVoters, ReplaceVoter)
