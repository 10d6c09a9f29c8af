"""The names of topics by id, from the Metadata responses to clients (KIP-516). Pure."""

from typing import Any, Final

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.schemas import decode_response

_METADATA: Final = 3
_METADATA_MAX: Final = 64  # responses
_NAMES_MAX: Final = 100_000  # of topics, deleted ones included
_CORRELATION_ID_BYTES: Final = 4


class Topics:
    """Responses are kept, and decoded when a rule names a topic, or when they are too many."""

    def __init__(self) -> None:
        self.names: Final[dict[bytes, str]] = {}
        self.changes = self._learnt = 0  # responses kept, and how many of them are decoded
        self._kept: Final[dict[tuple[int, bytes], bool]] = {}  # whether it is decoded

    def keep(self, version: int, frame: bytes) -> None:
        """Keep a Metadata response; a frame without its length."""
        response = version, frame[_CORRELATION_ID_BYTES:]  # without its correlation id
        if response in self._kept:
            return
        self._kept[response] = False
        self.changes += 1
        if len(self._kept) > _METADATA_MAX:
            oldest = next(iter(self._kept))
            if not self._kept.pop(oldest):  # it may be the only one with a topic of an open client
                self._decode(*oldest)

    def are_in(self, frame: bytes, name: str) -> bool:
        """Return whether a frame has an id of a topic: several, if it was created again."""
        self.learn()
        return any(known == name and topic_id in frame for topic_id, known in self.names.items())

    def learn(self) -> None:
        """Decode the kept responses."""
        if self._learnt == self.changes:
            return
        self._learnt = self.changes
        for version, content in [one for one, is_decoded in self._kept.items() if not is_decoded]:
            self._kept[version, content] = True
            self._decode(version, content)

    def _decode(self, version: int, content: bytes) -> None:
        try:
            metadata: Any = decode_response(
                _METADATA, version, bytes(_CORRELATION_ID_BYTES) + content
            )[1]
        except MalformedFrame:
            return
        for topic in metadata.topics:
            if topic.name and topic.topic_id != ZERO_UUID:
                self.names.pop(topic.topic_id, None)  # the newest last
                self.names[topic.topic_id] = topic.name
        while len(self.names) > _NAMES_MAX:
            del self.names[next(iter(self.names))]
