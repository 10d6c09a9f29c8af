"""Chooses how a history is checked: in this process, whole or in parts, or on Spark.

All ways call the same functions, so the choice changes the time and never the verdict. Spark costs
a JVM and seconds before it begins; then it uses all cores
(docs/decisions/0025-the-engine-is-chosen-by-size.md, 0069-spark-moves-blocks-of-bytes.md).
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from quorumlog.chaos.history.files import locate_history
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.spark.paths import is_remote, local_path
from quorumlog.chaos.spark.session import is_given

Engine = Literal["spark", "local"]
EngineChoice = Literal["auto", "spark", "local"]

BYTES_PER_MESSAGE: Final = 500  # what a check of a whole table held at its peak, rounded up
BYTES_IN_A_FILE: Final = 4  # of a message, compressed, and rather too few: 8 were measured
MEMORY_SHARE: Final = 0.25  # of the machine; the rest belongs to others
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def choose_engine(path: str | Path, *, master: str | None, memory_bytes: int) -> Engine:
    """Return the engine for the history at `path` on a machine with `memory_bytes`.

    Spark for a history whose table does not fit into the memory, if Spark is installed: there are
    parts to be checked side by side.
    A Spark master that is named, or a Spark session that is active already, asks for Spark, and so
    does a path that only Spark can read. JSON lines are read by this process in any case.
    Raises HistoryError if there is no history, or its Parquet file cannot be read.
    """
    if master is not None or is_given() or is_remote(path):
        return "spark"
    fits = fits_into_memory(locate_history(local_path(path)), memory_bytes)
    return "local" if fits or find_spec("pyspark") is None else "spark"


def fits_into_memory(file: Path, memory_bytes: int) -> bool:
    """Tell whether this process may hold the table of a Parquet file. Raises HistoryError."""
    return messages_in(file) * BYTES_PER_MESSAGE <= memory_bytes * MEMORY_SHARE


def messages_in(file: Path) -> int:
    """Return how many messages a Parquet file holds; 0 for any other file. Raises HistoryError.

    Our files say it. Of others it is guessed from their size, and rather too high: to ask the
    footer of a damaged file for its columns may end the process (pyarrow aborts).
    """
    if file.suffix != ".parquet":
        return 0
    import pyarrow as pa
    import pyarrow.parquet as pq

    from quorumlog.chaos.history.schema import MESSAGES

    try:
        said = (pq.read_schema(file).metadata or {}).get(MESSAGES, b"")
        return int(said) if said.isdigit() else file.stat().st_size // BYTES_IN_A_FILE
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error


def machine_memory(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the bytes of memory of this machine, or of the container that we run in."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory_bytes, int(cgroup_limit.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return memory_bytes
