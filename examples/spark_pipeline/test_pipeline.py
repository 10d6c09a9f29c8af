"""The query fails after a batch is written and before Spark records that; a new query goes on.

Between the two the leader of the orders dies.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline import CONNECTOR, Write, read_orders, read_revenue, start, write_batch
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions

from quorumlog import LocalCluster
from quorumlog.client.sync import SyncProducer
from quorumlog.testing import FreshTopic, ManualNemesis

ITEMS = [b"cup", b"plate"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark with its Kafka connector; without it if no package index has the package."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1")
    # For a JVM that lives for seconds.
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=128m"
    builder = builder.config("spark.driver.extraJavaOptions", quick)
    try:
        session = builder.config("spark.jars.packages", CONNECTOR).getOrCreate()
    except PySparkException:
        session = builder.config("spark.jars.packages", "").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(params=["quorumlog", "kafka"])
def source(request: pytest.FixtureRequest, spark: SparkSession) -> str:
    """Return the format of the orders."""
    if request.param == "kafka" and not spark.conf.get("spark.jars.packages", ""):
        pytest.skip(f"{CONNECTOR} is not in a local repository, and cannot be downloaded")
    return str(request.param)


class Crashes:
    """Crashes the query, and compares the revenue with the orders."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LocalCluster,
        topic: FreshTopic,
        nemesis: ManualNemesis,
        directory: Path,
    ) -> None:
        self.spark, self.cluster, self.topic = spark, cluster, topic
        self.nemesis, self.revenue = nemesis, directory / "revenue"

    def order(self, count: int) -> None:
        """Place orders of both items, for 100 cents each."""
        with SyncProducer(self.cluster.bootstrap, linger_ms=0) as shop:
            shop.send_many(self.topic, [b"100"] * 2 * count, ITEMS * count).result(60)

    def check(self, source: str, write: Write) -> None:
        """Fail unless the revenue has each order once."""

        def write_and_crash(orders: DataFrame, batch_id: int, revenue: Path) -> None:
            write(orders, batch_id, revenue)
            raise RuntimeError("the machine lost its power")

        orders = read_orders(self.spark, self.cluster.bootstrap, self.topic, source)
        self.order(count=10)
        with pytest.raises(StreamingQueryException, match="lost its power"):
            start(orders, self.revenue, write_and_crash).awaitTermination()
        self.nemesis.kill("partition-leader")
        self.order(count=5)
        start(orders, self.revenue, write).awaitTermination()
        cents = read_revenue(self.spark, self.revenue)
        for item in ("cup", "plate"):
            wrong = f"the revenue of {item} is {cents[item]} cents, not 1500"
            assert cents[item] == 1500, wrong


@pytest.fixture
def crashes(
    spark: SparkSession,
    quorumlog_cluster: LocalCluster,
    topic: FreshTopic,
    nemesis: ManualNemesis,
    tmp_path: Path,
) -> Crashes:
    return Crashes(spark, quorumlog_cluster, topic, nemesis, tmp_path)


def test_each_order_is_revenue_once(crashes: Crashes, source: str) -> None:
    crashes.check(source, write_batch)


# --- a mistake that this test finds ---


def append_batch(orders: DataFrame, batch_id: int, revenue: Path) -> None:
    del batch_id
    sums = orders.groupBy("item").agg(functions.sum("cents").alias("cents"))
    sums.write.mode("append").parquet(str(revenue))


def test_a_batch_that_is_appended_is_found(crashes: Crashes) -> None:
    with pytest.raises(AssertionError, match="the revenue of cup is 2500 cents, not 1500"):
        crashes.check("quorumlog", append_batch)
