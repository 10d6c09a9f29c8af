"""The small files of a log directory: checkpoints, snapshots of producers, properties, states.

The nodes' own reader reads each file whole; an unreadable file is a problem.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from quorumlog.broker.partitions.log.registrations import FILE_NAME as REGISTRATIONS_FILE
from quorumlog.cli.dump.contents import Item, Problem
from quorumlog.metadata_quorum.log.election_store import FILE_NAME as QUORUM_STATE_FILE
from quorumlog.metadata_quorum.log.election_store import decode_election, decode_file
from quorumlog.metadata_quorum.log.log_end import FILE_NAME as LOG_END_FILE
from quorumlog.metadata_quorum.log.log_end import decode_log_end
from quorumlog.storage.core.producer_snapshot import decode_snapshot
from quorumlog.storage.io.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    decode_meta_properties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    uuid_to_text,
)
from quorumlog.storage.io.epoch_checkpoint import FILE_NAME as EPOCHS_FILE
from quorumlog.storage.io.epoch_checkpoint import decode_epochs

Read = Callable[[bytes], Iterable[Item]]
"""Returns the items of a file's content. Raises KeyError, TypeError or ValueError."""


def read_small(content: bytes, read: Read) -> Iterator[Item | Problem]:
    """Yield the items of the file, or its problem."""
    if not content:
        yield Problem(None, "the file is empty")
        return
    try:
        items = list(read(content))
    except KeyError as error:
        yield Problem(None, f"damaged: {error} is missing")
    except (TypeError, ValueError, RecursionError) as error:
        zeros = "" if any(content) else "zeros only: "
        yield Problem(None, f"damaged: {zeros}{error}")
    else:
        yield from items


def producers(content: bytes) -> Iterable[Item]:
    """Read a `.snapshot` file: the recent batches of each producer."""
    return [entry._asdict() for entry in decode_snapshot(content)[0]]


def offsets(content: bytes) -> Iterable[Item]:
    """Read an `*-offset-checkpoint`: an offset for each partition."""
    found = decode_offset_checkpoint(content)
    return [{"topic": at.topic, "partition": at.partition, "offset": found[at]} for at in found]


def epochs(content: bytes) -> Iterable[Item]:
    """Read a `leader-epoch-checkpoint`: the start offset of each leader epoch."""
    return [entry._asdict() for entry in decode_epochs(content).entries]


def _partition(content: bytes) -> Iterable[Item]:
    return [{"topic_id": uuid_to_text(decode_partition_metadata(content).topic_id)}]


def _directory(content: bytes) -> Iterable[Item]:
    found = decode_meta_properties(content)
    return [
        {
            "cluster_id": found.cluster_id,
            "node_id": found.node_id,
            "directory_id": found.directory_id,
        }
    ]


def _json(content: bytes) -> Iterable[Item]:
    fields = json.loads(content)
    if not isinstance(fields, dict):
        raise TypeError(f"{type(fields).__name__} instead of an object")
    return [fields]


def _quorum_state(content: bytes) -> Iterable[Item]:
    fields = decode_file(content).fields
    decode_election(fields)
    return [dict(fields)]


NAMED: Final[dict[str, tuple[str, Read]]] = {
    EPOCHS_FILE: ("leader_epochs", epochs),
    PARTITION_METADATA_FILE: ("partition_metadata", _partition),
    META_PROPERTIES_FILE: ("meta_properties", _directory),
    QUORUM_STATE_FILE: ("quorum_state", _quorum_state),
    LOG_END_FILE: ("log_end", lambda content: [decode_log_end(content)]),
    CLEAN_SHUTDOWN_FILE: ("clean_shutdown", _json),
    REGISTRATIONS_FILE: ("broker_registrations", _json),
}
"""By a file's name: its kind and its reader."""
