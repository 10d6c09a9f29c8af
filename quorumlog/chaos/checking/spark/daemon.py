"""The parent of Spark's Python workers on this machine: makes their imports, and forks them.

The daemon of PySpark imports nothing before it forks, so that each worker spends 2 s of CPU time on
the imports of a check, and the collection of garbage after each task scans all modules: 0.1 s. Here
both happen once. The only thread that these imports start is jemalloc's, whose handlers of fork()
keep its locks usable in a child; numpy starts no thread, because Spark sets OMP_NUM_THREADS=1.
"""

import gc
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Final

_OF_WORKERS: Final = ("pyspark.worker", "quorumlog.chaos.checking.spark.engine")
_STDIN: Final = 0


@contextmanager
def ends_with_jvm() -> Iterator[None]:
    """End this process during the block when the JVM ends, which holds the other end of stdin.

    `manager` watches it only after the imports. The thread has ended before a worker is forked.
    """
    reader, writer = os.pipe()
    watch = threading.Thread(target=_watch, args=(reader,), name="stdin", daemon=True)
    watch.start()
    try:
        yield
    finally:
        os.close(writer)
        watch.join()
        os.close(reader)


def _watch(is_over: int) -> None:
    poller = select.poll()
    poller.register(_STDIN, 0)  # hang-ups only: its bytes are for `manager`
    poller.register(is_over, 0)
    if _STDIN in dict(poller.poll()):
        os._exit(1)


if __name__ == "__main__":
    with ends_with_jvm():
        for module in _OF_WORKERS:
            import_module(module)
        from pyspark.daemon import manager
    gc.collect()
    gc.freeze()
    manager()
