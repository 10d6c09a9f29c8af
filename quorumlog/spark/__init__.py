"""The Spark data source "quorumlog": topics as batch and streaming DataFrames.

from quorumlog.spark import register
register(spark)
spark.read.format("quorumlog").option("bootstrap.servers", "...").option("subscribe", "t").load()

Columns, options and checkpointed offsets are those of Spark's Kafka source, so one word moves a job
between the two. Another option is an error: ignored, it would read other records than the job
requires. The name is not `kafka`, which belongs to Spark's own connector. Spark keeps the offsets;
there is no group. The package uses the client alone: reading batches into Arrow without it would be
a second fetcher with its own errors.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register `format("quorumlog")` in this session. Raises ImportError without PySpark.

    Its workers on this machine run this interpreter, which has this package, unless PYSPARK_PYTHON
    names another. Spark would start `python3`.
    """
    from quorumlog.spark.source import QuorumlogSource

    context = getattr(spark, "sparkContext", None)  # a Spark Connect session has none
    if context is None or not context.master.startswith("local") or "PYSPARK_PYTHON" in os.environ:
        spark.dataSource.register(QuorumlogSource)
        return
    spark_python = context.pythonExec
    context.pythonExec = sys.executable
    try:
        spark.dataSource.register(QuorumlogSource)
    finally:
        context.pythonExec = spark_python
