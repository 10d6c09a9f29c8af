"""Chooses how a history is checked: in this process, whole or in parts, or on Spark.

All ways call the same functions, so the choice changes the time and never the verdict. Spark costs
a JVM and seconds before it begins; then it uses all cores
(docs/decisions/0025-the-engine-is-chosen-by-size.md, 0081-large-histories-are-checked-in-parts.md).
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from quorumlog.chaos.history.files import HistorySource
from quorumlog.chaos.spark.session import is_given

Engine = Literal["spark", "local"]
EngineChoice = Literal["auto", "spark", "local"]

BYTES_PER_MESSAGE: Final = 500  # peak memory of a check of a whole table, rounded up
MEMORY_SHARE: Final = 0.25  # of the machine; the rest is for other processes
MESSAGES_OF_A_TABLE: Final = 1_500_000  # beyond, the check in parts is faster and uses less memory
MESSAGES_FOR_SPARK: Final = 20_000_000  # below, its cores save less than the start of a JVM costs
CORES_FOR_SPARK: Final = 4  # it needs twice the CPU time: on two cores it is not faster
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def choose_engine(source: HistorySource, *, master: str | None, cores: int) -> Engine:
    """Return the engine for a history on a machine with so many cores.

    Spark for a history of many messages, if Spark is installed and there are enough cores. A named
    Spark master, an active Spark session, or a path that only Spark can read also selects Spark.
    This process reads JSON lines in any case. Raises HistoryError if there is no history, or its
    Parquet file cannot be read.
    """
    if master is not None or is_given() or source.is_remote:
        return "spark"
    worth_it = source.messages >= MESSAGES_FOR_SPARK and cores >= CORES_FOR_SPARK
    return "spark" if worth_it and find_spec("pyspark") is not None else "local"


def is_one_table(messages: int, memory_bytes: int) -> bool:
    """Return whether a history of so many messages is checked as one table."""
    fits = messages * BYTES_PER_MESSAGE <= memory_bytes * MEMORY_SHARE
    return fits and messages <= MESSAGES_OF_A_TABLE


def machine_memory(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the bytes of memory of this machine, or of the container that we run in."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory_bytes, int(cgroup_limit.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return memory_bytes
