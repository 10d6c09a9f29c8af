"""The Spark data source "quorumlog": topics as batch and streaming DataFrames.

from quorumlog.spark import register
register(spark)
spark.read.format("quorumlog").option("bootstrap.servers", "...").option("subscribe", "t").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register `format("quorumlog")` in this session. Raises ImportError without PySpark."""
    from quorumlog.spark.source import QuorumlogSource

    spark.dataSource.register(QuorumlogSource)
