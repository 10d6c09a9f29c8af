"""Copies topics and groups' offsets from one Kafka-compatible cluster to another.

`async with Mirror(MirrorSettings(...)) as mirror: await mirror.run()`. It stands on `client` alone,
so either side may be any Kafka. `core` decides: names, topics, offsets, positions. `io` has the
clients. docs/mirror.md describes it for users; KIP-382 is MirrorMaker 2, whose names it keeps.
"""

from quorumlog.mirror.core.offset_runs import OffsetRun, OffsetRuns
from quorumlog.mirror.core.position_records import Checkpoint, Generation, Position
from quorumlog.mirror.errors import (
    MirrorError,
    MirrorFenced,
    MirrorLoop,
    MirrorRefused,
    TopicsStopped,
)
from quorumlog.mirror.mirror import Mirror
from quorumlog.mirror.settings import MirrorSettings

__all__ = [
    "Checkpoint", "Generation", "Mirror", "MirrorError", "MirrorFenced", "MirrorLoop",
    "MirrorRefused", "MirrorSettings", "OffsetRun", "OffsetRuns", "Position", "TopicsStopped",
]  # fmt: skip
