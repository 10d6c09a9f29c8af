"""The parent of Spark's Python workers on this machine: makes their imports, and forks them.

The daemon of PySpark imports nothing before it forks, so that each worker spends 2 s of CPU time on
the imports of a check, and the collection of garbage after each task scans all modules: 0.1 s. Here
both happen once. The only thread that these imports start is jemalloc's, whose handlers of fork()
keep its locks usable in a child; numpy starts no thread, because Spark sets OMP_NUM_THREADS=1.
"""

import gc

import pyspark.worker  # noqa: F401 - for the workers
from pyspark.daemon import manager

import quorumlog.chaos.checking.spark.engine  # noqa: F401 - for the workers

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
