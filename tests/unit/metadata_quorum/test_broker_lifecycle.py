"""A broker registers, is unfenced, registers again when forgotten, and leaves in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from quorumlog.broker.controller_requests.lifecycle import BrokerLifecycle, RegistrationFailed
from quorumlog.broker.settings import LifecycleSettings
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ControllerUnavailable,
    DirectoryReport,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image import BrokerImage, ClusterDelta, ClusterImage
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.waiting import until

REGISTRATION = BrokerRegistration(
    broker_id=BrokerId(1),
    incarnation_id="a",
    host="h",
    port=1,
    control_address="h:2",
    directory_id="d",
)


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

    async def register_broker(self, registration: BrokerRegistration) -> RegistrationReply:
        if self.refusals:
            error_code = self.refusals.pop(0)
            if error_code is ErrorCode.NETWORK_EXCEPTION:
                raise ControllerUnavailable("nobody leads")
            return RegistrationReply(error_code=error_code)
        self.epoch += 1
        self.registered.append(registration)
        self.show(fenced=True)
        return RegistrationReply(error_code=ErrorCode.NONE, broker_epoch=self.epoch)

    async def broker_heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatReply:
        self.heartbeats.append(heartbeat)
        if self.unknown:
            self.unknown = False
            return HeartbeatReply(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
        if heartbeat.metadata_offset >= self.epoch and not heartbeat.want_fence:
            self.show(fenced=heartbeat.want_shut_down)
        return HeartbeatReply(error_code=ErrorCode.NONE, should_shut_down=heartbeat.want_shut_down)

    def image(self, *, fenced: bool) -> ClusterImage:
        broker = BrokerImage(
            broker_id=BrokerId(1),
            broker_epoch=self.epoch,
            incarnation_id="a",
            host="h",
            port=1,
            control_address="h:2",
            fenced=fenced,
            log_dirs=self.registered[-1].log_dirs if self.knows_directories else (),
        )
        return ClusterImage(
            end_offset=Offset(self.epoch + 1),
            controller_id=self.controller_id,
            brokers={BrokerId(1): broker},
        )

    def show(self, *, fenced: bool) -> None:
        assert self.lifecycle is not None
        delta = ClusterDelta(brokers=frozenset({BrokerId(1)}))
        self.lifecycle.publish(delta, self.image(fenced=fenced))


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@asynccontextmanager
async def registering(
    settings: LifecycleSettings | None = None,
) -> AsyncIterator[tuple[FakeController, BrokerLifecycle, list[int]]]:
    """A started lifecycle, its controller, and the broker epochs that it has been granted."""
    controller, epochs = FakeController(), list[int]()
    lifecycle = BrokerLifecycle(
        registration=REGISTRATION,
        registrar=controller,
        settings=settings or LifecycleSettings(broker_heartbeat_interval_ms=60_000),
        registered=epochs.append,
        may_lead=set_event(),
    )
    controller.lifecycle = lifecycle
    lifecycle.start()
    async with asyncio.timeout(10):
        yield controller, lifecycle, epochs


async def test_it_registers_and_is_let_in_without_waiting_for_an_interval() -> None:
    async with registering() as (controller, lifecycle, epochs):
        await lifecycle.unfenced.wait()
        assert epochs == [5] == [heartbeat.metadata_offset for heartbeat in controller.heartbeats]
        await lifecycle.stop(timeout_ms=1000)


async def test_it_registers_again_until_somebody_takes_it() -> None:
    async with registering() as (controller, lifecycle, epochs):
        controller.refusals = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.DUPLICATE_BROKER_REGISTRATION]
        await lifecycle.unfenced.wait()
        assert (controller.refusals, epochs) == ([], [5])
        await lifecycle.stop(timeout_ms=1000)


async def test_it_gives_up_when_the_time_to_register_is_over() -> None:
    async with registering(
        replace(LifecycleSettings(), initial_broker_registration_timeout_ms=20)
    ) as (controller, lifecycle, _epochs):
        controller.refusals = [ErrorCode.DUPLICATE_BROKER_REGISTRATION] * 100
        with pytest.raises(RegistrationFailed, match="DUPLICATE"):
            await lifecycle.failure
        await lifecycle.stop(timeout_ms=1000)


async def test_a_broker_that_was_registered_waits_for_its_controllers_for_ever() -> None:
    """As in Kafka: only the first registration has a time limit."""
    limit_ms = 20
    async with registering(
        LifecycleSettings(
            broker_heartbeat_interval_ms=60_000, initial_broker_registration_timeout_ms=limit_ms
        )
    ) as (controller, lifecycle, epochs):
        await lifecycle.unfenced.wait()
        controller.refusals = [ErrorCode.NETWORK_EXCEPTION] * 3  # 50 ms and more, with their pauses
        controller.unknown = True
        controller.show(fenced=True)
        await lifecycle.unfenced.wait()
        assert epochs == [5, 6]
        assert not lifecycle.failure.done()
        await lifecycle.stop(timeout_ms=1000)


async def test_an_error_of_those_who_are_told_of_the_registration_is_its_failure() -> None:
    def registered(_epoch: int) -> None:
        raise StorageError("the disk is full")

    controller = FakeController()
    controller.lifecycle = lifecycle = BrokerLifecycle(
        registration=REGISTRATION,
        registrar=controller,
        settings=LifecycleSettings(),
        registered=registered,
        may_lead=set_event(),
    )
    lifecycle.start()
    async with asyncio.timeout(10):
        with pytest.raises(StorageError, match="the disk is full"):
            await lifecycle.failure
        await lifecycle.stop(timeout_ms=1000)


async def test_one_that_is_not_known_any_more_registers_again() -> None:
    async with registering() as (controller, lifecycle, epochs):
        await lifecycle.unfenced.wait()
        controller.unknown = True
        controller.show(fenced=True)  # taken for dead: it says at once that it is not
        assert not lifecycle.unfenced.is_set()
        await lifecycle.unfenced.wait()
        assert epochs == [5, 6]
        await lifecycle.stop(timeout_ms=1000)


async def test_stopping_waits_for_leave_to_stop() -> None:
    async with registering() as (controller, lifecycle, _epochs):
        await lifecycle.unfenced.wait()
        await lifecycle.stop(timeout_ms=60_000)
        assert controller.heartbeats[-1].want_shut_down


async def test_it_asks_to_stay_fenced_until_it_may_lead_and_then_says_so_at_once() -> None:
    controller, may_lead = FakeController(), asyncio.Event()
    controller.lifecycle = lifecycle = BrokerLifecycle(
        registration=REGISTRATION,
        registrar=controller,
        settings=LifecycleSettings(broker_heartbeat_interval_ms=60_000),
        registered=lambda epoch: None,
        may_lead=may_lead,
    )
    lifecycle.start()
    async with asyncio.timeout(10):
        while not controller.heartbeats:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not lifecycle.unfenced.is_set()
        assert [heartbeat.want_fence for heartbeat in controller.heartbeats] == [True]
        may_lead.set()
        await lifecycle.unfenced.wait()
        assert [heartbeat.want_fence for heartbeat in controller.heartbeats] == [True, False]
        await lifecycle.stop(timeout_ms=1000)


async def test_a_new_controller_hears_of_it_at_once() -> None:
    """It has heard no broker yet, and fences no dead broker before: docs/decisions/0006."""
    async with registering() as (controller, lifecycle, _):
        await lifecycle.unfenced.wait()
        before = len(controller.heartbeats)
        controller.controller_id = BrokerId(3)
        lifecycle.publish(ClusterDelta(), controller.image(fenced=False))
        while len(controller.heartbeats) == before:
            await asyncio.sleep(0)
        lifecycle.publish(ClusterDelta(), controller.image(fenced=False))
        for _turn in range(10):
            await asyncio.sleep(0)
        assert len(controller.heartbeats) == before + 1
        await lifecycle.stop(timeout_ms=1000)


@asynccontextmanager
async def with_two_directories(
    *, knows_directories: bool = True
) -> AsyncIterator[tuple[FakeController, list[DirectoryReport], asyncio.Event]]:
    """The last of the reports is what the broker says; the event is set when one has failed."""
    controller, reports = FakeController(), [DirectoryReport(online=("d", "e"))]
    controller.knows_directories = knows_directories
    failed = asyncio.Event()
    lifecycle = BrokerLifecycle(
        registration=REGISTRATION,
        registrar=controller,
        settings=LifecycleSettings(broker_heartbeat_interval_ms=60_000),
        registered=lambda _: None,
        may_lead=set_event(),
        directories=lambda: reports[-1],
        directory_failed=failed,
    )
    controller.lifecycle = lifecycle
    lifecycle.start()
    async with asyncio.timeout(10):
        yield controller, reports, failed
    await lifecycle.stop(timeout_ms=0)


async def test_a_directory_that_fails_is_named_at_once() -> None:
    async with with_two_directories() as (controller, reports, failed):
        while not controller.heartbeats:
            await asyncio.sleep(0)
        assert controller.registered[-1].log_dirs == ("d", "e")
        sent = len(controller.heartbeats)
        reports.append(DirectoryReport(online=("d",), offline=("e",), has_offline=True))
        failed.set()
        while len(controller.heartbeats) == sent:
            await asyncio.sleep(0)
        assert controller.heartbeats[-1].offline_log_dirs == ("e",)
        controller.unknown = True  # it registers again, with what is left
        failed.set()
        while len(controller.registered) == 1:
            await asyncio.sleep(0)
        again = controller.registered[-1]
        assert (again.log_dirs, again.has_offline_dirs) == (("d",), True)


async def test_a_controller_that_knows_no_directories_ends_the_broker() -> None:
    async with with_two_directories(knows_directories=False) as (controller, _, _):
        assert controller.lifecycle is not None
        with pytest.raises(RegistrationFailed, match="supports only one log directory a broker"):
            await controller.lifecycle.failure


async def test_a_broker_tells_that_it_opens_its_logs_until_its_last_directory_fails() -> None:
    """While it does, the controller may leave it in its places."""
    controller, failed = FakeController(), asyncio.Event()
    controller.lifecycle = BrokerLifecycle(
        registration=REGISTRATION,
        registrar=controller,
        settings=LifecycleSettings(broker_heartbeat_interval_ms=60_000),
        registered=lambda _: None,
        may_lead=asyncio.Event(),
        directories=lambda: DirectoryReport(has_failed=len(controller.heartbeats) > 0),
        directory_failed=failed,
    )
    controller.lifecycle.start()
    await until(lambda: len(controller.heartbeats) == 1)
    failed.set()
    await until(lambda: len(controller.heartbeats) == 2)
    asked = [(one.want_fence, one.is_opening, one.has_failed) for one in controller.heartbeats]
    assert asked == [(True, True, False), (True, False, True)]
    await controller.lifecycle.stop(timeout_ms=0)
