"""Internal topics, which the first request that needs them creates."""

from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.groups.offsets_topic import offsets_topic
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.state_topic import transactions_topic
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, NewTopic
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

LEADER_WAIT_MS: Final = 5000
_TOPICS: Final[Mapping[str, Callable[[BrokerSettings], NewTopic]]] = {
    OFFSETS_TOPIC: offsets_topic,
    TRANSACTIONS_TOPIC: transactions_topic,
}


def new_topic(name: str, settings: BrokerSettings) -> NewTopic:
    """Return the topic to create for a name: an internal one has settings of its own."""
    make = _TOPICS.get(name)
    return NewTopic(name=name) if make is None else make(settings)


def has_leaders(image: ClusterImage, name: str) -> bool:
    """Whether the topic is there, and every partition of it has a leader."""
    topic = image.topics.get(name)
    return topic is not None and all(part.leader_id in image.brokers for part in topic.partitions)


async def create_internal(context: BrokerContext, name: str) -> str | None:
    """Create an internal topic, and wait a while for its leaders; return why it was refused.

    Nothing is done if the topic is there, or if the controller is not to be reached.
    """
    if name in context.image.topics:
        return None
    try:
        [result] = await context.controller.create_topics([new_topic(name, context.settings)])
    except ControllerUnavailable:
        return None
    if result.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
        return result.error_message
    await context.metadata.wait_until(
        lambda image: has_leaders(image, name), timeout_ms=LEADER_WAIT_MS
    )
    return None
