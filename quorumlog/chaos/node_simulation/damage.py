"""Damage by a disk, or by an operator, to the files of a broker that is down.

The files of the metadata quorum are spared: losses of a voter are another subject (decision 2).
"""

import re
from collections.abc import Sequence
from random import Random
from typing import Final

from quorumlog.chaos.faults.copies import KINDS
from quorumlog.chaos.simulation.kernel.sim_disk import DirectoryCopy, SimDisk
from quorumlog.storage.io.checkpoints import decode_partition_metadata
from quorumlog.wire.codec.identifiers import TopicId

METADATA_FILE: Final = "partition.metadata"
QUORUM_DIRECTORY: Final = "__cluster_metadata-0"
OF_PARTITION: Final = re.compile(rf"/(?!{QUORUM_DIRECTORY}/)[^/]+-\d+/[^/]+$")
"""Matches the path of a file in a partition's directory."""

_FILES: Final = {
    "log": re.compile(r"\.log$"),
    "metadata": re.compile(r"/partition\.metadata$"),
    "checkpoint": re.compile(r"checkpoint$"),
    "index": re.compile(r"\.(index|timeindex|txnindex|snapshot)$"),
}
"""First word of a kind -> the files that it damages."""


def damage(disk: SimDisk, directories: Sequence[str], kind: int, rng: Random) -> str:
    """Damage one file below `directories`; return a description, or "" if there is no such file.

    kind: an index of KINDS in faults/copies.py.
    """
    of, how = KINDS[kind].split("_")
    paths = [
        (path, len(content))
        for path, content in disk.files()
        if _FILES[of].search(path)
        and (path.rpartition("/")[0] in directories or OF_PARTITION.search(path))
    ]
    if how != "gone":
        paths = [(path, size) for path, size in paths if size]
    if not paths:
        return ""
    path, size = rng.choice(paths)
    match how:
        case "bit":
            return f"{path}: a bit of byte {disk.flip_bit(path, rng)} of {size} is flipped"
        case "cut":
            kept = rng.randrange(size)
            disk.cut(path, kept)
            return f"{path} is cut to {kept} of {size} bytes"
        case _:
            disk.lose(path)
            return f"{path} is gone"


def put_back(disk: SimDisk, directory: str, copy: DirectoryCopy) -> None:
    """Replace a log directory by a copy, except for the metadata quorum's files in it."""
    of_quorum = f"{directory}/{QUORUM_DIRECTORY}"
    kept = disk.copied(of_quorum)
    disk.put_back(directory, copy)
    if kept:
        disk.put_back(of_quorum, kept)


def is_identified(disk: SimDisk, path: str, topic_id: TopicId) -> bool:
    """Return whether a partition's directory has a valid `partition.metadata` of this topic id."""
    content = disk.copied(path).get("", {}).get(METADATA_FILE, b"")
    try:
        return decode_partition_metadata(content).topic_id == topic_id
    except ValueError:
        return False
