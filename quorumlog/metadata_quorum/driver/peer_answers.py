"""Responses of other nodes, checked: corrupt records never reach the core."""

import logging
from typing import Any, Final

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchSnapshotResponse
from quorumlog.metadata_quorum.driver.dependencies import Fact, Responded
from quorumlog.metadata_quorum.log.metadata_log import describe
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId

_logger: Final = logging.getLogger(__name__)


class PeerAnswers:
    """Converts responses to facts; logs once for each node that its records are corrupt."""

    def __init__(self) -> None:
        self._corrupt_peers: Final[set[BrokerId]] = set()

    def read(self, sent: effects.SendRequest, answer: tuple[Any, bytes | None] | None) -> Fact:
        """Check the records beside a response; with corrupt records, return a failed request."""
        failed = events.RequestFailed(request_id=sent.request_id)
        if answer is None:
            return failed
        response, content = answer
        if isinstance(response, FetchSnapshotResponse):
            content = content or b""
            received = events.ResponseReceived(
                request_id=sent.request_id,
                source=sent.destination,
                response=response,
                snapshot_bytes=len(content),
            )
            return Responded(received, content)
        try:
            records, fetched = describe(content) if content else (b"", None)
        except CorruptBatch as error:
            if sent.destination not in self._corrupt_peers:
                self._corrupt_peers.add(sent.destination)  # log it once
                _logger.warning("node %d sends corrupt records: %s", sent.destination, error)
            return failed
        if fetched is not None:
            self._corrupt_peers.discard(sent.destination)
        received = events.ResponseReceived(
            request_id=sent.request_id, source=sent.destination, response=response, records=fetched
        )
        return Responded(received, records)
