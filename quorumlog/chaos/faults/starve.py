"""starve: a process gets a small share of a CPU."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import NODE_ROLES, AnyStep, Scene, Step, StepFault, named, ranged


@named("starve", "a node gets a small share of a CPU for a while", targets=NODE_ROLES)
class Starve(StepFault):
    """The process runs `share_percent` of the time, in turns of a few tens of milliseconds."""

    needs: ClassVar[frozenset[str]] = frozenset({"starve", "feed"})
    breaks: ClassVar[str] = "starve"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    share_percent: int = ranged(1, 90, default=15)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Starve the victims."""
        return (Step(operation="starve", node_ids=scene.victims, amount=self.share_percent),)


FAULTS: Final = (Starve,)
