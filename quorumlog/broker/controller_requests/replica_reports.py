"""Reports about replicas to the controller, many in one request, until it has committed them.

The log directories of replicas (AssignReplicasToDirs, KIP-858), and how far logs are whole
(ReportLogs). A report is made when its request is sent: by then it may be needless.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

PER_REQUEST: Final = 500  # replicas: a small piece of work for the controller
RETRY_BACKOFF_S: Final = 0.5

ReportT = TypeVar("ReportT")
_logger: Final = logging.getLogger(__name__)


class ReplicaReports(Generic[ReportT]):
    """Runs one task. It sends no request while `broker_epoch()` is -1, that is, not registered.

    `report_of` returns the report of a replica; None: the controller needs none.
    """

    def __init__(
        self,
        name: str,
        *,
        report_of: Callable[[TopicPartition], ReportT | None],
        send: Callable[[int, Sequence[ReportT]], Awaitable[ErrorCode]],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._name: Final = name
        self._report_of: Final = report_of
        self._send: Final = send
        self._broker_epoch: Final = broker_epoch
        self._to_look_at: dict[TopicPartition, None] = {}
        self._wake: Final = asyncio.Event()

    def note(self, changed: Iterable[TopicPartition]) -> None:
        """Check whether these replicas need a report."""
        self._to_look_at.update(dict.fromkeys(changed))
        self._wake.set()

    def wake(self) -> None:
        """Check again whether there are reports to send."""
        self._wake.set()

    async def run(self) -> None:
        """Send the reports that the controller needs until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._to_look_at and self._broker_epoch() >= 0:  # `registered` wakes the task
                if not await self._send_some():
                    await asyncio.sleep(RETRY_BACKOFF_S)

    async def _send_some(self) -> bool:
        """Send some reports; return False if they must be sent again."""
        looked_at = [at for at, _ in zip(self._to_look_at, range(PER_REQUEST), strict=False)]
        for at in looked_at:
            del self._to_look_at[at]
        reports = [one for one in map(self._report_of, looked_at) if one is not None]
        if not reports:
            await asyncio.sleep(0)
            return True
        try:
            error_code = await self._send(self._broker_epoch(), reports)
        except ControllerUnavailable as error:
            _logger.info("%s of %d replicas: %s", self._name, len(reports), error)
            error_code = ErrorCode.REQUEST_TIMED_OUT
        if error_code is ErrorCode.NONE:
            return True
        self._to_look_at.update(dict.fromkeys(looked_at))
        return False
