"""The broker's settings and its defaults for topics: the static values, and dynamic changes.

Source: KIP-226. A value for this broker takes precedence over a value for all brokers.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.broker.partitions.core.admission import TopicLimits, topic_limits
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.settings import altered as with_altered
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.settings.servers import in_force, texts_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS


class TopicDefaults:
    """`texts`: the values by the names of the broker's settings; `settings`: the parsed values."""

    def __init__(self, broker_id: BrokerId, settings: BrokerSettings, logs: LogDirectories) -> None:
        self._broker_id: Final = broker_id
        self._logs: Final = logs
        self._at_start: Final = {**texts_of(settings), **logs.options.topic_defaults}
        self._altered: dict[str, str] = {}
        self._settings_at_start: Final = settings
        self.settings = settings
        self.texts: Mapping[str, str] = self._at_start

    def of_topic(self, image: ClusterImage, topic: str) -> TopicConfig:
        """Return the configuration of a topic on this broker; the defaults if it does not exist."""
        known = image.topics.get(topic)
        return TopicConfig({} if known is None else known.configs, self.texts)

    def limits_of(self, image: ClusterImage, topic: str) -> TopicLimits:
        """Return the limits for batches of a topic; the defaults if it does not exist."""
        return topic_limits(self.of_topic(image, topic), is_internal=topic in INTERNAL_TOPICS)

    def maybe_alter(self, image: ClusterImage, drivers: Iterable[PartitionDriver]) -> bool:
        """Apply changed settings to all logs; return whether there were any.

        Topics with equal configurations share the result, so few results are computed.
        """
        of_all, own = image.broker_config(None), image.broker_config(self._broker_id)
        altered = {**in_force(of_all), **in_force(own)}
        if altered == self._altered:
            return False
        self._altered, self.texts = altered, {**self._at_start, **altered}
        self.settings = with_altered(self._settings_at_start, altered)
        self._logs.options.topic_defaults = self.texts
        known: dict[tuple[tuple[str, str], ...], LogSettings] = {}
        for driver in drivers:
            topic = image.topics.get(driver.topic_partition.topic)
            if topic is not None:
                key = tuple(sorted(topic.configs.items()))
                if key not in known:
                    known[key] = self._logs.options.settings_of(topic.configs)
                driver.log.settings = known[key]
        return True
