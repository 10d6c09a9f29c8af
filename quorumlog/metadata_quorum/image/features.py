"""The feature levels that records of a cluster say (KIP-584), and those of this release.

Nodes of two releases must never read one log as two clusters. So a record of a kind that an older
release does not know is written only once the level that has it is in force, which is itself a
record: docs/decisions/0099-records-of-a-new-kind-wait-for-a-level.md

The levels of Kafka's `group.version` and `transaction.version` say which protocols clients may use:
docs/decisions/0126-a-new-cluster-begins-with-the-newest-protocols.md
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# DEVIATION: Kafka's metadata.version counts other records.
# docs/decisions/0099-records-of-a-new-kind-wait-for-a-level.md
METADATA_FEATURE: Final = "quorumlog.metadata.version"
FIRST_LEVEL: Final = 1  # in force where no record says another one
GROUP_FEATURE: Final = "group.version"  # 1: the consumer groups of KIP-848
TRANSACTION_FEATURE: Final = "transaction.version"  # 1: flexible records; 2: KIP-890
LEVEL_OF_ACCESS: Final = 2
LEVEL_OF_DIRECTORIES: Final = 3
LEVEL_OF_GROUP_CONFIGS: Final = 4
LEVEL_OF_LAST_KNOWN_ELR: Final = 5
LEVEL_OF_CLUSTER_MIN_ISR: Final = 6
LEVEL_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        FIRST_LEVEL: "topics and brokers",
        LEVEL_OF_ACCESS: "ACLs, client quotas, SCRAM",
        LEVEL_OF_DIRECTORIES: "brokers with several log directories",
        LEVEL_OF_GROUP_CONFIGS: "configurations of groups",
        LEVEL_OF_LAST_KNOWN_ELR: "replicas that may lack records",
        LEVEL_OF_CLUSTER_MIN_ISR: "min.insync.replicas of the cluster",
    }
)
NEWEST_LEVEL: Final = max(LEVEL_NAMES)

KRAFT_FEATURE: Final = "kraft.version"  # 1: the voters are in the metadata log (KIP-853)
KRAFT_VERSION_MAX: Final = 1

NEW_CLUSTER_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        GROUP_FEATURE: 1,
        KRAFT_FEATURE: KRAFT_VERSION_MAX,
        METADATA_FEATURE: NEWEST_LEVEL,
        TRANSACTION_FEATURE: 2,
    }
)
"""The newest levels: a new cluster begins with them.

Its record of kraft.version is an order to the quorum, which writes the voters behind it.
"""


def first_level(name: str) -> int:
    """Return the level that is in force where no record says another one; 0: off."""
    return FIRST_LEVEL if name == METADATA_FEATURE else 0


ANNOUNCED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {name: (first_level(name), newest) for name, newest in NEW_CLUSTER_LEVELS.items()}
)
"""By name, the least and the greatest level that this release works with."""

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {name: levels for name, levels in ANNOUNCED.items() if name != KRAFT_FEATURE}
)
"""The features whose level is in force as soon as a record says so: not kraft.version."""


def level_problem(supported: Mapping[str, tuple[int, int]], name: str, level: int) -> str | None:
    """Say why a node with these features cannot work at a level, or None.

    One that does not name a feature works at its first level.
    """
    first = first_level(name)
    least, greatest = supported.get(name, (first, first))
    if least <= level <= greatest:
        return None
    return f"level {level} of {name} is in force, and only {least} to {greatest} are supported"
