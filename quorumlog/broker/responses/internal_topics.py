"""Internal topics: the first request that needs one creates it."""

from typing import Final

from quorumlog.broker.responses.cluster_view import partitions_of
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, NewTopic
from quorumlog.metadata_quorum.controller_requests import CreateTopics
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec import topic_names
from quorumlog.wire.codec.error_codes import ErrorCode

LEADER_WAIT_MS: Final = 5000


def new_topic(name: str, settings: BrokerSettings) -> NewTopic:
    """Return the topic to create for a name: internal topics have their own settings.

    These are Kafka's `offsets.topic.*` and `transaction.state.log.*`.
    """
    match name:
        case topic_names.OFFSETS_TOPIC:
            return NewTopic(
                name=name,
                partitions=settings.offsets_topic_num_partitions,
                replication_factor=settings.offsets_topic_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(settings.offsets_topic_segment_bytes),
                },
            )
        case topic_names.TRANSACTIONS_TOPIC:
            return NewTopic(
                name=name,
                partitions=settings.transaction_state_log_num_partitions,
                replication_factor=settings.transaction_state_log_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "uncompressed",
                    "min.insync.replicas": str(settings.transaction_state_log_min_isr),
                    "segment.bytes": str(settings.transaction_state_log_segment_bytes),
                    "unclean.leader.election.enable": "false",
                },
            )
        case _:
            return NewTopic(name=name)


def has_leaders(image: ClusterImage, name: str) -> bool:
    """Whether the topic exists, and each of its partitions has a leader."""
    topic = image.topics.get(name)
    return topic is not None and all(part.leader_id in image.brokers for part in topic.partitions)


async def create_internal(context: BrokerContext, name: str) -> str | None:
    """Create an internal topic, and wait a while for its leaders; return the refusal, if any.

    Do nothing if the topic exists, or if the controller is unavailable.
    """
    if name in context.image.topics:
        return None
    try:
        wanted = CreateTopics(topics=(new_topic(name, context.settings),))
        [result] = (await context.controller.ask(wanted)).results
    except ControllerUnavailable:
        return None
    if result.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
        return result.error_message
    await context.metadata.wait_until(
        lambda image: has_leaders(image, name),
        timeout_ms=LEADER_WAIT_MS,
        leaders_of=lambda image: partitions_of(image, [name]),
    )
    return None
