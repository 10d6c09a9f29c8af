"""What a disk, or a person, does to the files of a broker that is down.

The files of the metadata quorum are spared: what a voter may lose is another subject (decision 36).
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
"""The path of a file that is in the directory of a partition."""

_FILES: Final = {
    "log": re.compile(r"\.log$"),
    "metadata": re.compile(r"/partition\.metadata$"),
    "checkpoint": re.compile(r"checkpoint$"),
    "index": re.compile(r"\.(index|timeindex|txnindex|snapshot)$"),
}
"""By the first word of a kind: which files it damages."""


def damage(disk: SimDisk, directories: Sequence[str], kind: int, rng: Random) -> str:
    """Damage one file below `directories`; return which and how, or "" if there is none.

    kind: the place of a kind in KINDS of faults/copies.py.
    """
    of, how = KINDS[kind].split("_")
    paths = [
        (path, len(content))
        for path, content in disk.files()
        if _FILES[of].search(path) and _is_of_broker(path, directories)
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
    """Let a copy take the place of a log directory, but for what the metadata quorum has there."""
    of_quorum = f"{directory}/{QUORUM_DIRECTORY}"
    kept = disk.copied(of_quorum)
    disk.put_back(directory, copy)
    if kept:
        disk.put_back(of_quorum, kept)


def is_identified(disk: SimDisk, path: str, topic_id: TopicId) -> bool:
    """Tell whether the directory of a partition says that it is of this topic."""
    content = disk.copied(path).get("", {}).get(METADATA_FILE, b"")
    try:
        return decode_partition_metadata(content).topic_id == topic_id
    except ValueError:
        return False


def _is_of_broker(path: str, directories: Sequence[str]) -> bool:
    directory, _, _ = path.rpartition("/")
    return directory in directories or bool(OF_PARTITION.search(path))
