"""Faults of the metadata quorum: its voters change (KIP-853), and its leader resigns."""

from collections.abc import Sequence
from typing import ClassVar

from quorumlog.chaos.faults.fault import AnyStep, Fault, Scene, Step, StepFault, named


@named("change_voters", "a controller is removed from the voters of the quorum, and added again")
class ChangeVoters(StepFault):
    """The active controller, too. kraft.version is raised to 1 first, and stays there.

    A removal with an unknown outcome is healed like a successful one.
    """

    breaks: ClassVar[str] = "remove_voter"


@named("replace_voter", "SIGKILL a controller, empty its log directory, and add it as a new voter")
class ReplaceVoter(StepFault):
    """A disk is replaced: the old voter is removed, and the node is added with its new directory.

    As with `wipe`, the back end waits until the cluster needs no copy of this node.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"raise_kraft_version", "kill", "wipe", "start", "remove_voter", "add_voter"}
    )
    breaks: ClassVar[str] = "kill"
    destroys: ClassVar[bool] = True

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Kill, wipe, and remove the old voter."""
        operations = ("raise_kraft_version", "kill", "wipe", "remove_voter")
        return tuple(Step(operation=one, node_ids=scene.victims) for one in operations)

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the node, and add it."""
        return tuple(Step(operation=one, node_ids=scene.victims) for one in ("start", "add_voter"))


@named("resign", "a leader receives a request to resign")
class Resign(Fault):
    """The target resigns its leadership on request."""


@named("false_notice", "a node gets a false notice that its leader's process died")
class FalseNotice(Fault):
    """The target gets a false notice that its leader's process died (decision 0003)."""
