"""A broker registers, is unfenced, registers again when forgotten, and leaves in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from quorumlog.broker.controller_requests.lifecycle import BrokerLifecycle, RegistrationFailed
from quorumlog.broker.settings import LifecycleSettings
from quorumlog.metadata_quorum.cbor_values import to_plain
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ControllerClient,
    ControllerUnavailable,
    DirectoryReport,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.brokers import broker_image, broker_registration
from tests.support.waiting import until

REGISTRATION = broker_registration()


class FakeController:
    """Grants what it is asked, unless `refusals` or `unknown` say otherwise."""

    def __init__(self) -> None:
        self.refusals: list[ErrorCode] = []
        self.unknown = False
        self.epoch = 4
        self.controller_id = BrokerId(2)
        self.heartbeats: list[BrokerHeartbeat] = []
        self.lifecycle: BrokerLifecycle | None = None
        self.knows_directories = True
        self.registered: list[BrokerRegistration] = []

    async def ask(self, request: BrokerRegistration | BrokerHeartbeat) -> Any:
        if isinstance(request, BrokerRegistration):
            return self._register(request)
        return self._beat(request)

    def _register(self, registration: BrokerRegistration) -> RegistrationReply:
        if self.refusals:
            error_code = self.refusals.pop(0)
            if error_code is ErrorCode.NETWORK_EXCEPTION:
                raise ControllerUnavailable("nobody leads")
            return RegistrationReply(error_code=error_code)
        self.epoch += 1
        self.registered.append(registration)
        self.show(fenced=True)
        return RegistrationReply(error_code=ErrorCode.NONE, broker_epoch=self.epoch)

    def _beat(self, heartbeat: BrokerHeartbeat) -> HeartbeatReply:
        self.heartbeats.append(heartbeat)
        if self.unknown:
            self.unknown = False
            return HeartbeatReply(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
        if heartbeat.metadata_offset >= self.epoch and not heartbeat.want_fence:
            self.show(fenced=heartbeat.want_shut_down)
        return HeartbeatReply(error_code=ErrorCode.NONE, should_shut_down=heartbeat.want_shut_down)

    def image(self, *, fenced: bool) -> ClusterImage:
        log_dirs = self.registered[-1].log_dirs if self.knows_directories else ()
        broker = broker_image(epoch=self.epoch, fenced=fenced, log_dirs=log_dirs)
        return ClusterImage(
            end_offset=Offset(self.epoch + 1),
            controller_id=self.controller_id,
            brokers={BrokerId(1): broker},
        )

    def show(self, *, fenced: bool) -> None:
        assert self.lifecycle is not None
        delta = ClusterDelta(brokers=frozenset({BrokerId(1)}))
        self.lifecycle.publish(delta, self.image(fenced=fenced))


FOR_LONG = LifecycleSettings(broker_heartbeat_interval_ms=60_000)


@asynccontextmanager
async def registering(
    settings: LifecycleSettings = FOR_LONG,
    *,
    may_lead: asyncio.Event | None = None,
    registered: Callable[[int], None] | None = None,
    **directories: Any,
) -> AsyncIterator[tuple[FakeController, BrokerLifecycle, list[int]]]:
    """A started lifecycle, its controller, and the broker epochs that it has been granted."""
    controller, epochs = FakeController(), list[int]()
    if may_lead is None:
        may_lead = asyncio.Event()
        may_lead.set()
    controller.lifecycle = lifecycle = BrokerLifecycle(
        registration=REGISTRATION,
        controller=cast("ControllerClient", controller),
        settings=settings,
        registered=registered or epochs.append,
        may_lead=may_lead,
        **directories,
    )
    lifecycle.start()
    async with asyncio.timeout(10):
        yield controller, lifecycle, epochs
        await lifecycle.stop(timeout_ms=1000)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_registers_and_is_let_in_without_waiting_for_an_interval() -> None:
    async with registering() as (controller, lifecycle, epochs):
        await lifecycle.unfenced.wait()
        assert epochs == [5] == [heartbeat.metadata_offset for heartbeat in controller.heartbeats]
        await lifecycle.stop(timeout_ms=60_000)  # waits for leave to stop
        assert controller.heartbeats[-1].want_shut_down


async def test_it_registers_again_until_somebody_takes_it() -> None:
    async with registering() as (controller, lifecycle, epochs):
        controller.refusals = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.DUPLICATE_BROKER_REGISTRATION]
        await lifecycle.unfenced.wait()
        assert (controller.refusals, epochs) == ([], [5])


async def test_it_gives_up_when_the_time_to_register_is_over() -> None:
    short = LifecycleSettings(initial_broker_registration_timeout_ms=20)
    async with registering(short) as (controller, lifecycle, _epochs):
        controller.refusals = [ErrorCode.DUPLICATE_BROKER_REGISTRATION] * 100
        with pytest.raises(RegistrationFailed, match="DUPLICATE"):
            await lifecycle.failure


async def test_a_broker_that_was_registered_waits_for_its_controllers_for_ever() -> None:
    """As in Kafka: only the first registration has a time limit."""
    limited = replace(FOR_LONG, initial_broker_registration_timeout_ms=20)
    async with registering(limited) as (controller, lifecycle, epochs):
        await lifecycle.unfenced.wait()
        controller.refusals = [ErrorCode.NETWORK_EXCEPTION] * 3  # 50 ms and more, with their pauses
        controller.unknown = True
        controller.show(fenced=True)  # taken for dead: it says at once that it is not
        assert not lifecycle.unfenced.is_set()
        await lifecycle.unfenced.wait()
        assert epochs == [5, 6]
        assert not lifecycle.failure.done()


async def test_an_error_of_those_who_are_told_of_the_registration_is_its_failure() -> None:
    def registered(_epoch: int) -> None:
        raise StorageError("the disk is full")

    async with registering(registered=registered) as (_, lifecycle, _):
        with pytest.raises(StorageError, match="the disk is full"):
            await lifecycle.failure


async def test_it_asks_to_stay_fenced_until_it_may_lead_and_then_says_so_at_once() -> None:
    may_lead = asyncio.Event()
    async with registering(may_lead=may_lead) as (controller, lifecycle, _):
        await until(lambda: bool(controller.heartbeats))
        await some_turns()
        assert not lifecycle.unfenced.is_set()
        assert [heartbeat.want_fence for heartbeat in controller.heartbeats] == [True]
        may_lead.set()
        await lifecycle.unfenced.wait()
        assert [heartbeat.want_fence for heartbeat in controller.heartbeats] == [True, False]


async def test_a_new_controller_hears_of_it_at_once() -> None:
    """It has heard no broker yet, and fences no dead broker before: docs/decisions/0006."""
    async with registering() as (controller, lifecycle, _):
        await lifecycle.unfenced.wait()
        before = len(controller.heartbeats)
        controller.controller_id = BrokerId(3)
        lifecycle.publish(ClusterDelta(), controller.image(fenced=False))
        await until(lambda: len(controller.heartbeats) > before)
        lifecycle.publish(ClusterDelta(), controller.image(fenced=False))
        await some_turns()
        assert len(controller.heartbeats) == before + 1


async def test_a_heartbeat_names_the_leaders_that_leave_a_fetch_unanswered() -> None:
    unanswering, often = list[BrokerId](), LifecycleSettings(broker_heartbeat_interval_ms=1)
    given: dict[str, Any] = {"unanswering": lambda: (*unanswering,)}
    async with registering(often, **given) as (controller, _, _):
        await until(lambda: bool(controller.heartbeats))
        assert "unanswering" not in cast(Any, to_plain(controller.heartbeats[-1]))  # as before
        unanswering.append(BrokerId(3))
        await until(lambda: controller.heartbeats[-1].unanswering == (3,))
        unanswering.clear()
        await until(lambda: controller.heartbeats[-1].unanswering is None)


async def test_a_directory_that_fails_is_named_at_once() -> None:
    reports, failed = [DirectoryReport(online=("d", "e"))], asyncio.Event()
    given: dict[str, Any] = {"directories": lambda: reports[-1], "directory_failed": failed}
    async with registering(**given) as (controller, _, _):
        await until(lambda: bool(controller.heartbeats))
        assert controller.registered[-1].log_dirs == ("d", "e")
        sent = len(controller.heartbeats)
        reports.append(DirectoryReport(online=("d",), offline=("e",), has_offline=True))
        failed.set()
        await until(lambda: len(controller.heartbeats) > sent)
        assert controller.heartbeats[-1].offline_log_dirs == ("e",)
        controller.unknown = True  # it registers again, with what is left
        failed.set()
        await until(lambda: len(controller.registered) > 1)
        again = controller.registered[-1]
        assert (again.log_dirs, again.has_offline_dirs) == (("d",), True)


async def test_a_controller_that_knows_no_directories_ends_the_broker() -> None:
    two = DirectoryReport(online=("d", "e"))
    async with registering(directories=lambda: two) as (controller, lifecycle, _):
        controller.knows_directories = False
        with pytest.raises(RegistrationFailed, match="supports only one log directory a broker"):
            await lifecycle.failure


async def test_a_broker_tells_that_it_opens_its_logs_until_its_last_directory_fails() -> None:
    """While it does, the controller may leave it in its places."""
    reports, failed = [DirectoryReport()], asyncio.Event()
    given: dict[str, Any] = {"directories": lambda: reports[-1], "directory_failed": failed}
    async with registering(may_lead=asyncio.Event(), **given) as (controller, _, _):
        await until(lambda: len(controller.heartbeats) == 1)
        reports.append(DirectoryReport(has_failed=True))
        failed.set()
        await until(lambda: len(controller.heartbeats) == 2)
        asked = [(one.want_fence, one.is_opening, one.has_failed) for one in controller.heartbeats]
        assert asked == [(True, True, False), (True, False, True)]
