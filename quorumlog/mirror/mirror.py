"""A mirror: sessions, one after the other, until it is cancelled or an error stays."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from quorumlog import clock
from quorumlog.backoff import Backoff
from quorumlog.chance import random_bytes, random_fraction
from quorumlog.client import Admin, ErrorCode, KafkaError
from quorumlog.client.errors import DENIED
from quorumlog.mirror.core.position_records import Generation
from quorumlog.mirror.dependencies import DEPENDENCIES, MirrorDependencies
from quorumlog.mirror.errors import MirrorRefused, TopicsStopped
from quorumlog.mirror.io.pump import Progress, SessionOver
from quorumlog.mirror.io.session import Session
from quorumlog.mirror.reports import OnReport, Report, log_report
from quorumlog.mirror.settings import MirrorSettings

_LASTING: Final = DENIED | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.SASL_AUTHENTICATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
}
"""Errors that no wait mends. Any other error ends a session alone."""
_CLIENT_ID: Final = "quorumlog-mirror"


class Mirror:
    """Copies topics and offsets of groups: `async with Mirror(settings) as one: await one.run()`.

    Its state is at the target, so another process with the same settings goes on where this one
    ended, however it ended. `progress` and `stopped` may be read at any time.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        on_report: OnReport = log_report,
        dependencies: MirrorDependencies = DEPENDENCIES,
    ) -> None:
        """on_report: receives the reports for a person: created and stopped topics, losses.

        `dependencies` is for tests: a mutant of the chaos lab breaks one rule that way.
        """
        self.settings: Final = replace(
            settings, source=_named(settings.source), target=_named(settings.target)
        )
        self.progress: Final = Progress()
        self._dependencies: Final = dependencies
        self._copies: Final = dependencies.new_copies()
        self._report: Final = on_report
        self._source: Final = Admin(**self.settings.source)
        self._target: Final = Admin(**self.settings.target)
        self._stack: Final = AsyncExitStack()
        self._identity: Generation | None = None
        self._is_owner = False

    async def __aenter__(self) -> Self:
        """Connect to both clusters. Raises KafkaError, MirrorRefused."""
        try:
            for admin in (self._source, self._target):
                await self._stack.enter_async_context(admin)
            self._identity = await self._identify()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the clients."""
        await self._stack.aclose()

    async def run(self) -> None:
        """Copy for ever; with `once`, until all that the source had at the start is copied.

        Errors that may pass are waited out. Raises MirrorFenced; TopicsStopped if no topic is left
        or, with `once`, if not every topic was copied; MirrorRefused, MirrorLoop; and KafkaError
        for an error that stays, as a missing right.
        """
        backoff, failures, message_bytes = Backoff(100, 5_000), 0, None
        while True:
            began_ms = clock.monotonic_ms()
            try:
                await self._session(message_bytes).run(self._begun)
            except SessionOver as over:
                message_bytes = over.message_bytes or message_bytes
            except KafkaError as error:
                if error.code in _LASTING:
                    raise
                long_ago = clock.monotonic_ms() - began_ms > 60_000
                failures = 1 if long_ago else failures + 1
                message = f"copying is interrupted, and goes on from the last position: {error}"
                self._report(Report("mirror", message, is_loss=True))
                await asyncio.sleep(backoff.delay_ms(failures, random_fraction()) / 1000)
            else:
                if reasons := self.stopped():
                    raise TopicsStopped(reasons)
                return

    def stopped(self) -> dict[str, str]:
        """Return why topics are not copied, by their names at the source."""
        return self._copies.stopped()

    def _session(self, message_bytes: int | None) -> Session:
        if self._identity is None:
            raise RuntimeError("the mirror is not started: use `async with`")
        return Session(
            settings=self.settings,
            source=self._source,
            target=self._target,
            identity=self._identity,
            is_owner=self._is_owner,
            message_bytes=message_bytes,
            copies=self._copies,
            progress=self.progress,
            report=self._report,
            dependencies=self._dependencies,
        )

    def _begun(self) -> None:
        self._is_owner = True

    async def _identify(self) -> Generation:
        """Describe this mirror. Raises MirrorRefused if it would copy topics onto themselves."""
        source = (await self._source.describe_cluster()).cluster_id
        target = (await self._target.describe_cluster()).cluster_id
        if source is not None and source == target and not self.settings.copy_prefix:
            raise MirrorRefused(
                "source and target are one cluster, and the copies have the same names:"
                " give the copies a prefix"
            )
        return Generation(
            instance=random_bytes(16).hex(),
            started_ms=clock.wall_clock_ms(),
            source_cluster=source,
            target_cluster=target,
            topics=self.settings.topics,
            exclude=self.settings.exclude,
            prefix=self.settings.copy_prefix,
            target_alias=self.settings.target_alias,
        )


def _named(client: Any) -> dict[str, Any]:
    return {"client_id": _CLIENT_ID, **client}
