"""Other people's admin clients delete records and look at log directories, on real processes."""

import time
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("record_deletion")]
TOPIC, COUNT, DELETED = "t", 50, 30
WAIT_S = 30.0
AT = confluent_kafka.TopicPartition(TOPIC, 0)


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(WAIT_S)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for index in range(COUNT):
        producer.produce(TOPIC, b"%d" % index)
    assert producer.flush(WAIT_S) == 0


def earliest(bootstrap: str) -> int:
    """Ask the leader; some brokers do not know a new one for a moment."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "looks-only"}
    deadline_s = time.monotonic() + WAIT_S
    while True:
        consumer = confluent_kafka.Consumer(settings)
        try:
            return int(consumer.get_watermark_offsets(AT, timeout=2.0)[0])
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline_s:
                raise
        finally:
            consumer.close()


def leader_of(bootstrap: str) -> int:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=WAIT_S)
    return int(metadata.topics[TOPIC].partitions[0].leader)


def test_deleted_records_stay_away_though_the_leader_is_killed(tmp_path: Path) -> None:
    with LocalCluster(nodes=3, directory=tmp_path) as cluster:
        bootstrap = cluster.bootstrap
        fill(bootstrap)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        asked = confluent_kafka.TopicPartition(TOPIC, 0, DELETED)
        deleted = admin.delete_records([asked], request_timeout=WAIT_S)
        assert deleted[AT].result(WAIT_S).low_watermark == DELETED
        beyond = confluent_kafka.TopicPartition(TOPIC, 0, COUNT + 1)
        with pytest.raises(confluent_kafka.KafkaException, match="OFFSET_OUT_OF_RANGE"):
            admin.delete_records([beyond], request_timeout=WAIT_S)[AT].result(WAIT_S)
        cluster.kill(leader_of(bootstrap))
        assert earliest(bootstrap) == DELETED
        # kafka-python never closes the socket with which it tries a dead broker.
        alive = [node.kafka for node in cluster.nodes if cluster.pid(node.id) is not None]
        check_log_directories(",".join(alive))


def check_log_directories(bootstrap: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        brokers = admin.describe_log_dirs({TOPIC: [0]})
    finally:
        admin.close()
    assert len(brokers) == 2  # those that are left
    for broker in brokers:
        [directory] = broker["log_dirs"]
        [topic] = directory["topics"]
        [partition] = topic["partitions"]
        assert (directory["error_code"], topic["name"], partition["offset_lag"]) == (0, TOPIC, 0)
        assert partition["partition_size"] > 0
        assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
