"""The rules on requests, applied to the messages of one connection. Pure."""

from typing import Final

from quorumlog.chaos.faults.apis import kafka_api_name
from quorumlog.chaos.faults.links import Plane
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.splitters import HttpSplitter, KafkaSplitter, Message, Splitter


class Exchange:
    """The requests of one connection, and their replies.

    `requests` and `replies` split the two directions of the connection.
    """

    def __init__(self, plane: Plane, forth: LinkState) -> None:
        """Begin a connection; `forth`: the state of the link that its requests take."""
        is_kafka = plane == "kafka"
        self.requests: Final[Splitter] = (
            KafkaSplitter(kafka_api_name) if is_kafka else HttpSplitter(is_request=True)
        )
        self.replies: Final[Splitter] = (
            KafkaSplitter(None) if is_kafka else HttpSplitter(is_request=False)
        )
        self._forth: Final = forth
        self._unanswered: Final[set[int]] = set()  # requests whose replies are to be lost

    def request_late_s(self, message: Message) -> float | None:
        """Draw the delay of a request; None: it is lost, and so is the rest of the stream."""
        state = self._forth
        if state.is_plain:
            return 0.0
        if state.drops_request(message.api):
            return None
        if state.drops_reply(message.api):
            self._unanswered.add(message.number)
        return state.request_delay_s(message.api)

    def loses_reply(self, message: Message) -> bool:
        """Return whether this reply is lost; the connection is then reset."""
        return message.number in self._unanswered
