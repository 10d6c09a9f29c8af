"""The seed of a cluster, without the cost of its packages for clusters that have none."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.time_limit import Say

if TYPE_CHECKING:
    from quorumlog.cluster.seed_file import SeedSource
    from quorumlog.cluster.seeding import Seeded


def read(source: str | Path | Mapping[str, Any] | None) -> "SeedSource | None":
    """Read and check a seed: a file, or its contents; None: there is none.

    Raises InvalidArgument with the line and the field, or with the command that installs the extra.
    """
    if source is None:
        return None
    from quorumlog import extras

    if lack := extras.why_no_seeds():
        raise InvalidArgument(lack)
    from quorumlog.cluster.seed_file import SeedSource

    return SeedSource(source)


def plant(source: "SeedSource | None", client: Mapping[str, Any], say: Say) -> "Seeded | None":
    """Create the missing objects of a seed; `say` receives their names. Raises ClusterError.

    `client`: the arguments of a client that may create them.
    """
    if source is None:
        return None
    from quorumlog.client import KafkaError
    from quorumlog.cluster.seeding import apply

    try:
        seeded = apply(source, client)
    except KafkaError as error:
        raise ClusterError(f"the seed is not complete: {error}; start again") from error
    for line in seeded.lines():
        say(line)
    return seeded
