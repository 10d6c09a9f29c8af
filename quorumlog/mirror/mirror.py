"""A mirror: one asyncio task that copies topics and groups' offsets until it is cancelled."""

from types import TracebackType
from typing import Final, Self

from quorumlog.mirror.settings import MirrorSettings


class Mirror:
    """`async with Mirror(settings) as mirror: await mirror.run()`."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings: Final = settings

    async def __aenter__(self) -> Self:
        """Connect to both clusters. Raises KafkaError, MirrorRefused."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the clients; an open transaction is aborted."""

    async def run(self) -> None:
        """Copy for ever; with `once`, until all that the source had at the start is copied.

        Passing errors of a cluster are waited out. Raises MirrorFenced, TopicsStopped (with `once`,
        or when no topic is left) and KafkaError for an error that stays, as a missing right.
        """
