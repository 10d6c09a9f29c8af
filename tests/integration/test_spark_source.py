"""Spark reads topics of a real cluster: by our data source, and by its own Kafka connector."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from quorumlog import LocalCluster
from quorumlog.client import NewTopic
from quorumlog.client.sync import SyncAdmin, SyncProducer
from quorumlog.spark import register
from tests.support.spark.sessions import spark_session

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.xdist_group("spark")]

Reader = Callable[..., Any]
COUNT = 300
CREATED_MS = 1_700_000_000_123


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(nodes=1) as cluster:
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name="events", num_partitions=2, replication_factor=1)])
        produce(cluster.bootstrap, range(COUNT))
        yield cluster.bootstrap


def produce(bootstrap: str, numbers: range) -> None:
    with SyncProducer(bootstrap) as producer:
        deliveries = [
            producer.send(
                "events",
                b"%d" % number,
                key=b"k%d" % number if number % 3 else None,
                partition=number % 2,
                timestamp_ms=CREATED_MS + number,
                headers=[("n", b"%d" % number), ("none", None)] if number == 7 else [],
            )
            for number in numbers
        ]
        for delivery in deliveries:
            delivery.result(30)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("local[2]") as session:
        context = session.sparkContext
        spark_python, context.pythonExec = context.pythonExec, "a python3 without this package"
        register(session)
        assert context.pythonExec == "a python3 without this package"
        context.pythonExec = spark_python
        yield session


@pytest.fixture
def read(spark: Any, bootstrap: str) -> Reader:
    def load(stream: bool = False, **options: str) -> Any:
        reader = (spark.readStream if stream else spark.read).format("quorumlog")
        reader = reader.option("bootstrap.servers", bootstrap)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return load


def test_a_batch_has_every_record_with_the_columns_of_sparks_own_source(read: Reader) -> None:
    frame = read(subscribe="events", includeHeaders="true")
    assert [field.simpleString() for field in frame.schema] == [
        "key:binary",
        "value:binary",
        "topic:string",
        "partition:int",
        "offset:bigint",
        "timestamp:timestamp",
        "timestampType:int",
        "headers:array<struct<key:string,value:binary>>",
    ]
    rows = {int(row.value): row for row in frame.collect()}
    assert sorted(rows) == [*range(COUNT)]
    for number, row in rows.items():
        assert (row.topic, row.partition, row.offset) == ("events", number % 2, number // 2)
        assert row.key == (b"k%d" % number if number % 3 else None)
        assert round(row.timestamp.timestamp() * 1000) == CREATED_MS + number
        assert row.timestampType == 0
    assert [tuple(one) for one in rows[7].headers] == [("n", b"7"), ("none", None)]
    assert rows[8].headers is None


def test_a_batch_may_name_partitions_and_offsets(read: Reader) -> None:
    wanted = read(
        assign='{"events": [1]}',
        startingOffsets='{"events": {"1": 10}}',
        endingOffsets='{"events": {"1": 40}}',
        maxRecordsPerPartition="7",
    )
    assert wanted.rdd.getNumPartitions() == 5
    assert sorted(row.offset for row in wanted.collect()) == [*range(10, 40)]


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: Any, read: Reader, bootstrap: str, tmp_path: Path
) -> None:
    def run() -> tuple[list[int], list[int]]:
        frame = read(
            stream=True, subscribe="events", startingOffsets="earliest", maxOffsetsPerTrigger="90"
        )
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        rows = [progress["numInputRows"] for progress in query.recentProgress]
        written = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted(int(row.value) for row in written), [count for count in rows if count]

    assert run() == ([*range(COUNT)], [90, 90, 90, 30])
    produce(bootstrap, range(COUNT, COUNT + 20))
    assert run() == ([*range(COUNT + 20)], [20])
    offsets = sorted(
        (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda f: int(f.name)
    )
    ends = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert ends == {"events": {"0": (COUNT + 20) // 2, "1": (COUNT + 20) // 2}}


def test_a_topic_that_is_not_there_is_named(read: Reader) -> None:
    with pytest.raises(Exception, match="nowhere"):
        read(subscribe="nowhere", **{"kafka.default.api.timeout.ms": "1000"}).collect()


CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
VERSIONS = (pyspark.__version__, "4.2.0")  # that of this Spark may not be published yet
BY_CONNECTOR = """
import sys
from pyspark.sql import SparkSession
from quorumlog.chaos.checking.spark.context import spark_context

conf = {"spark.jars.packages": sys.argv[1]}
with spark_context("local[1]", conf=conf, is_short=True) as context:
    spark = SparkSession(context)
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", sys.argv[2])
    rows = frame.option("subscribe", "events").load().collect()
    print(sorted(int(row.value) for row in rows) == [*range(len(rows))], len(rows) >= 300)
    out = spark.createDataFrame([(b"a", b"1"), (b"b", b"2")], "key binary, value binary")
    out = out.write.format("kafka").option("kafka.bootstrap.servers", sys.argv[2])
    out.option("topic", "written").save()
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", sys.argv[2])
    rows = frame.option("subscribe", "written").load().collect()
    print(sorted((bytes(row.key), bytes(row.value)) for row in rows))
"""


def by_connector(version: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BY_CONNECTOR, f"{CONNECTOR}:{version}", bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )


def test_sparks_own_kafka_connector_works_unmodified(bootstrap: str) -> None:
    if not any(Path.home().glob(".ivy2*/jars/*spark-sql-kafka*.jar")):
        try:
            socket.create_connection(("repo1.maven.org", 443), timeout=3).close()
        except OSError as error:
            pytest.skip(f"{CONNECTOR} is not here, and Maven Central cannot be reached: {error}")
    with SyncAdmin(bootstrap) as admin:
        admin.create_topics([NewTopic(name="written", num_partitions=1, replication_factor=1)])
    for version in VERSIONS:
        done = by_connector(version, bootstrap)
        if "unresolved dependency" not in done.stderr + done.stdout:
            break
    else:
        pytest.skip(f"{CONNECTOR} cannot be had in {' or '.join(VERSIONS)}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == ["True True", "[(b'a', b'1'), (b'b', b'2')]"]
