"""A broker's membership of the cluster: it registers, sends heartbeats and shuts down.

A registration belongs to one process; when the controller no longer has it, the broker registers
again. The broker sends its first heartbeat as soon as it has replayed its registration, because the
controller waits for that before it lets the broker lead. Until the broker has opened the logs that
this image assigns to it, its heartbeats request to be fenced: otherwise it would answer
NOT_LEADER_OR_FOLLOWER for partitions that it leads. If no other broker serves, it keeps the
leaderships and ISR places of its former process all the same, so long as its logs are whole.
Source: KIP-631.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.broker.settings import LifecycleSettings
from quorumlog.chance import random_fraction
from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ControllerClient,
    ControllerUnavailable,
    DirectoryReport,
    HeartbeatReply,
)
from quorumlog.metadata_quorum.image import BrokerImage, ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.features import ANNOUNCED
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

REGISTRATION_BACKOFF: Final = Backoff(50, 1000)
SHUTDOWN_HEARTBEAT_S: Final = 0.1
_OLD_CONTROLLER: Final = "the controller's release supports only one log directory a broker"
_logger: Final = logging.getLogger(__name__)


class RegistrationFailed(Exception):
    """The controller has not accepted this broker's registration in time."""


class BrokerLifecycle:
    """One task. An ImagePublisher: add it after the publishers that act on the image.

    `unfenced` is set while this process is unfenced in the image. `registered` is called with each
    broker epoch, before the controller may let the broker lead. The caller sets `may_lead` when the
    broker can serve its partitions; it stays set. It sets `directory_failed` when another of the
    `directories` has failed. `unanswering` returns the leaders that leave this broker's fetches
    unanswered. `failure` gets the error that ends the task: RegistrationFailed, or an
    error of `registered`.
    """

    def __init__(
        self,
        *,
        registration: BrokerRegistration,
        controller: ControllerClient,
        settings: LifecycleSettings,
        registered: Callable[[int], None],
        may_lead: asyncio.Event,
        directories: Callable[[], DirectoryReport] = DirectoryReport,
        directory_failed: asyncio.Event | None = None,
        unanswering: Callable[[], tuple[BrokerId, ...]] = tuple,
    ) -> None:
        self.unfenced: Final = asyncio.Event()
        self.failure: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.broker_epoch = -1
        self._registration = replace(registration, features=dict(ANNOUNCED))
        self._controller: Final = controller
        self._settings: Final = settings
        self._registered: Final = registered
        self._may_lead: Final = may_lead
        self._directories: Final = directories
        self._directory_failed: Final = directory_failed or asyncio.Event()
        self._unanswering: Final = unanswering
        self._image = ClusterImage()
        self._wake: Final = asyncio.Event()
        self._may_stop: Final = asyncio.Event()
        self._is_started = self._wants_to_stop = False
        self._refusal = ""
        self._unanswered: Final = LastingCondition(_logger)
        self._tasks: Final = Tasks(self._fail)

    @property
    def why_unregistered(self) -> str | None:
        """Why the registration was refused so far; None: it was accepted, or not yet tried."""
        is_refused = self.broker_epoch == -1 and self._refusal
        return f"it is not registered: {self._refusal}" if is_refused else None

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:  # noqa: ARG002 - the Protocol's
        """Take over the new image. A new controller gets a heartbeat at once."""
        if image.controller_id not in {self._image.controller_id, NO_LEADER}:
            self._wake.set()
        self._image = image
        self._note_registration()

    def start(
        self,
        *,
        previous_broker_epoch: int = -1,
        incarnations: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Register, then send heartbeats until `stop`.

        `previous_broker_epoch`: of the process before, if it closed every log (KIP-966).
        `incarnations`: by log directory, the processes to whose registrations it belongs.
        """
        self._registration = replace(
            self._registration,
            previous_broker_epoch=previous_broker_epoch,
            incarnations=incarnations,
        )
        self._is_started = True
        self._tasks.start(self._run())
        self._tasks.start(self._wake_when_it_may_lead())
        self._tasks.start(self._wake_when_directories_fail())

    async def stop(self, *, timeout_ms: int) -> None:
        """Hand over the led partitions, for at most `timeout_ms`, then send no more heartbeats."""
        if not self._is_started:
            return
        self._wants_to_stop = True
        self._wake.set()
        if self.unfenced.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._may_stop.wait()
            except TimeoutError:
                _logger.warning("broker %d stops before all has been handed over", self._id)
        await self._tasks.stop()
        self.unfenced.clear()
        self.failure.cancel()

    @property
    def _id(self) -> int:
        return self._registration.broker_id

    def _ours(self) -> BrokerImage | None:
        """Return this process's registration, if the image has it."""
        return self._image.process(self._registration.broker_id, self.broker_epoch)

    def _note_registration(self) -> None:
        """Update `unfenced` from the image; if this process is fenced, wake the task."""
        ours = self._ours()
        if ours is not None and self._directories().online and not ours.log_dirs:
            # That controller would accept a replaced directory as whole.
            self._fail(RegistrationFailed(f"{_OLD_CONTROLLER}: broker {self._id} cannot serve"))
        if ours is not None and not ours.fenced:
            self.unfenced.set()
            return
        self.unfenced.clear()
        if ours is not None:
            self._wake.set()  # the controller has fenced us, or not yet unfenced us

    async def _wake_when_it_may_lead(self) -> None:
        await self._may_lead.wait()
        self._wake.set()

    async def _wake_when_directories_fail(self) -> None:
        while True:
            await self._directory_failed.wait()
            self._directory_failed.clear()
            self._wake.set()

    async def _run(self) -> None:
        """Register and send heartbeats. Only the first registration has a time limit.

        Later the controllers may be unavailable for long.
        """
        timeout_s = self._settings.initial_broker_registration_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._register()
        except TimeoutError:
            why = f"broker {self._id} cannot register: {self._refusal}"
            raise RegistrationFailed(why) from None
        await self._send_heartbeats()
        while not self._may_stop.is_set():
            await self._register()
            await self._send_heartbeats()

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    async def _register(self) -> None:
        """Register, with retries. `_refusal`: why it has failed so far."""
        failures, self._refusal = 0, "no controller has answered"
        while (refusal := await self._try_to_register()) is not None:
            if refusal != self._refusal:
                _logger.warning("broker %d cannot register: %s", self._id, refusal)
            self._refusal = refusal
            failures += 1
            delay_ms = REGISTRATION_BACKOFF.delay_ms(failures, random_fraction())
            await asyncio.sleep(delay_ms / 1000)

    async def _try_to_register(self) -> str | None:
        """Register; return why that failed, or None."""
        try:
            report = self._directories()
            registration = replace(
                self._registration, log_dirs=report.online, has_offline_dirs=report.has_offline
            )
            reply = await self._controller.ask(registration)
        except ControllerUnavailable as error:
            return str(error)
        if reply.error_code is not ErrorCode.NONE:
            return reply.error_message or reply.error_code.name
        self.broker_epoch = reply.broker_epoch
        _logger.info("broker %d is registered, with epoch %d", self._id, self.broker_epoch)
        self._registered(self.broker_epoch)
        self._note_registration()  # the image may have come before the response
        return None

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until the broker may stop, or the controller refuses its registration."""
        while True:
            await self._pause()
            try:
                reply = await self._send_heartbeat()
            except ControllerUnavailable as error:
                text = f"broker {self._id}: no answer to a heartbeat: {error}"
                self._unanswered.note(monotonic_ms(), text)
                continue
            self._unanswered.end(monotonic_ms(), f"broker {self._id}: heartbeats are answered")
            if reply.should_shut_down:
                self._may_stop.set()
                return
            if reply.error_code in {
                ErrorCode.STALE_BROKER_EPOCH,
                ErrorCode.BROKER_ID_NOT_REGISTERED,
            }:
                _logger.warning("broker %d registers again: %s", self._id, reply.error_code.name)
                return

    async def _pause(self) -> None:
        pause_s = self._settings.broker_heartbeat_interval_ms / 1000
        if self._wants_to_stop:
            pause_s = min(pause_s, SHUTDOWN_HEARTBEAT_S)
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _send_heartbeat(self) -> HeartbeatReply:
        may_lead, directories = self._may_lead.is_set(), self._directories()
        heartbeat = BrokerHeartbeat(
            broker_id=self._registration.broker_id,
            broker_epoch=self.broker_epoch,
            metadata_offset=self._image.end_offset - 1,
            want_fence=not may_lead,
            is_opening=not (may_lead or directories.has_failed),
            want_shut_down=self._wants_to_stop,
            offline_log_dirs=directories.offline,
            has_failed=directories.has_failed,
            unanswering=self._unanswering() or None,
        )
        return await self._controller.ask(heartbeat)
