"""Chooses the engine for a check: this process if the history fits into memory, else Spark.

Both call the same functions, so the choice changes the time and never the verdict. Spark costs a
JVM and seconds before it begins; it needs no more memory as the history grows
(docs/decisions/0025-the-engine-is-chosen-by-size.md).
"""

import os
from pathlib import Path
from typing import Final, Literal

from quorumlog.chaos.history.files import locate_history
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.spark.paths import is_remote, local_path
from quorumlog.chaos.spark.session import is_given

Engine = Literal["spark", "local"]
EngineChoice = Literal["auto", "spark", "local"]

# What the check held at its peak, rounded up: 290 to 340 bytes a message of a Parquet file, 5 bytes
# a byte of JSON lines.
BYTES_PER_MESSAGE: Final = 400
BYTES_PER_BYTE_OF_JSON: Final = 6
MEMORY_SHARE: Final = 0.5  # of the machine; the rest belongs to others
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def choose_engine(path: str | Path, *, master: str | None, memory_bytes: int) -> Engine:
    """Return the engine for the history at `path` on a machine with `memory_bytes`.

    A Spark master that is named, or a Spark session that is active already, asks for Spark.
    Raises HistoryError if there is no history, or its Parquet file cannot be read.
    """
    if master is not None or is_given() or is_remote(path):
        return "spark"
    needed_bytes = memory_needed(locate_history(local_path(path)))
    return "local" if needed_bytes <= memory_bytes * MEMORY_SHARE else "spark"


def memory_needed(file: Path) -> int:
    """Estimate how many bytes the check of this file holds at once in this process."""
    if file.suffix != ".parquet":
        return file.stat().st_size * BYTES_PER_BYTE_OF_JSON
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    messages: int = sum(
        column.num_values for column in columns if column.path_in_schema.endswith(".offset")
    )
    return messages * BYTES_PER_MESSAGE


def machine_memory(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the bytes of memory of this machine, or of the container that we run in."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory_bytes, int(cgroup_limit.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return memory_bytes
