"""Revenue per item by Spark Structured Streaming: orders of a topic become rows of files.

python pipeline.py localhost:9092 orders revenue [quorumlog|kafka]

The format `quorumlog` is the data source of this project, in Python. The format `kafka` is Spark's
own connector, a Java package: `spark-submit --packages CONNECTOR pipeline.py ...`.

Spark stores the offsets of a batch before it processes the batch, and after a crash it processes
the same offsets again, with the same batch id. So the result of a batch replaces the result of its
earlier attempt.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from quorumlog.spark import register

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"

Write = Callable[[DataFrame, int, Path], None]


def read_orders(spark: SparkSession, bootstrap: str, topic: str, source: str) -> DataFrame:
    """Return the orders as a stream: the key is the item, the value its price in cents."""
    if source == "quorumlog":
        register(spark)
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    return records.selectExpr(
        "CAST(key AS STRING) item", "CAST(CAST(value AS STRING) AS INT) cents"
    )


def write_batch(orders: DataFrame, batch_id: int, revenue: Path) -> None:
    """Write the revenue of a batch into a directory of its own, which an attempt replaces."""
    sums = orders.groupBy("item").agg(functions.sum("cents").alias("cents"))
    sums.write.mode("overwrite").parquet(str(revenue / f"batch={batch_id}"))


def start(orders: DataFrame, revenue: Path, write: Write = write_batch) -> StreamingQuery:
    """Process the orders that are there, in batches; a later start continues behind them."""
    query = orders.writeStream.foreachBatch(lambda batch, number: write(batch, number, revenue))
    query = query.option("checkpointLocation", f"{revenue}.checkpoint")
    return query.trigger(availableNow=True).start()


def read_revenue(spark: SparkSession, revenue: Path) -> dict[str, int]:
    """Return the cents of each item."""
    rows = spark.read.parquet(str(revenue)).groupBy("item").agg(functions.sum("cents")).collect()
    return {row[0]: row[1] for row in rows}


def main(bootstrap: str, topic: str, revenue: str, source: str = "quorumlog") -> None:
    """Process the orders that are there, and print the revenue."""
    spark = SparkSession.builder.appName("revenue").getOrCreate()
    start(read_orders(spark, bootstrap, topic, source), Path(revenue)).awaitTermination()
    print(read_revenue(spark, Path(revenue)))  # noqa: T201 - an example prints


if __name__ == "__main__":
    main(*sys.argv[1:])
