"""An administrator that deletes a topic now and then, and creates it again under the same name."""

from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.controller_node import ControllerNode
from quorumlog.metadata_quorum.controller.requests import CreateTopics, DeleteTopics, TopicResults
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.error_codes import ErrorCode

LIVES_US: Final = 2_500_000  # the mean life of a topic
AGAIN_US: Final = 100_000
GONE_US: Final = 300_000  # the mean time until the topic is created again


class Deleting:
    """Deletes and re-creates one existing topic. In the calm it stays."""

    def __init__(
        self,
        environment: Environment,
        controller: ControllerNode,
        rng: Rng,
        topic: NewTopic,
    ) -> None:
        self._environment: Final = environment
        self._controller: Final = controller
        self._rng: Final = rng
        self._topic: Final = topic

    def run(self) -> None:
        """Delete the topic after a random time."""
        self._environment.timeline.push(self._rng.randrange(2 * LIVES_US), self._delete)

    def _delete(self) -> None:
        topic_id = self._controller.controller.cluster.topic_id(self._topic.name)
        if self._environment.is_calm or topic_id is None:
            return
        self._controller.ask(DeleteTopics(topic_ids=(topic_id,)))
        gone_us = self._rng.choice((1, self._rng.randrange(1, 2 * GONE_US)))
        self._environment.timeline.push(gone_us, self._create)

    def _create(self) -> None:
        results = self._controller.ask(CreateTopics(topics=(self._topic,)))
        if isinstance(results, TopicResults) and results.results[0].error_code is ErrorCode.NONE:
            self.run()
        else:  # e.g. no broker is alive to lead it
            self._environment.timeline.push(AGAIN_US, self._create)
