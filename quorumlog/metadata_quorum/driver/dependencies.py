"""The dependencies of a driver, and the events that it handles beside the core's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller_requests import ControllerRequest
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import Request
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId

T = TypeVar("T")


class Stopped(Exception):
    """The driver has stopped."""


class NotController(Exception):
    """The node is not the active controller; it has not carried out the request."""


class ControllerDeposed(NotController):
    """Another node became the controller before the commit: the change may be made, or not."""


def refuse(answer: "Answer", reason: Exception) -> None:
    """Answer with an exception, unless the caller has given up."""
    if not answer.done():
        answer.set_exception(reason)


class Answer(Protocol):
    """The receiver of an answer, as an `asyncio.Future`. It is done if the caller has given up."""

    def done(self) -> bool:
        """Return whether there is an answer already, or no caller any more."""

    def set_result(self, result: Any, /) -> None:
        """Set the answer."""

    def set_exception(self, exception: Exception, /) -> None:
        """Set the reason for having no answer."""


class Ask(NamedTuple):
    """A request to the active controller, its arrival time, and its id, which repetitions keep."""

    request: ControllerRequest
    answer: Answer
    received_ms: int
    request_id: str | None = None


class BrokerProcessDied(NamedTuple):
    """The process of this registration is gone: its control address refuses connections."""

    broker_id: BrokerId
    broker_epoch: int


class Responded(NamedTuple):
    """A response, and the bytes of the records beside it."""

    event: events.ResponseReceived
    records: bytes


class TurnDue(NamedTuple):
    """A part of the driver requests a turn for `act`, after the write in progress."""

    act: Callable[[], None]


Fact = events.Event | Ask | BrokerProcessDied | Responded | TurnDue


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Clock(Protocol):
    """Two times, in ms."""

    def now_ms(self) -> int:
        """Return the monotonic time, as used by the core."""

    def wall_ms(self) -> int:
        """Return the time since 1970, as used in records."""

    def call_at(self, time_ms: int, action: Callable[[], None]) -> Timer:
        """Call `action` once `now_ms` has reached `time_ms`: later, never from within."""


class Executor(Protocol):
    """Runs writes, which may wait for the disk."""

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work`, then call `done` with its result, from the driver's thread.

        If `work` raises, the node ends: `done` is not called.
        """


class Transport(Protocol):
    """Sends requests to the other nodes."""

    def send(
        self,
        destination: BrokerId,
        request: Request,
        *,
        timeout_ms: int,
        done: Callable[[tuple[Any, bytes | None] | None], None],
    ) -> None:
        """Send; call `done` once, later: with the response and the records beside it, or None."""


class LeaderListener(Protocol):
    """A part of the node that follows the leader of the quorum."""

    def leader_changed(self, leader_id: BrokerId) -> None:
        """Handle a new leader; NOBODY: unknown."""

    def controller_claimed(self) -> None:
        """Handle the activation of this node's controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDependencies:
    """The dependencies of a driver. `failed` is called once if an error ends the driver.

    `voters_changed` gets the voter set in force; None: the configured voters, as at first.
    """

    clock: Clock
    executor: Executor
    transport: Transport
    leader_listener: LeaderListener
    random_bytes: Callable[[int], bytes]
    failed: Callable[[BaseException], None]
    voters_changed: Callable[[VoterSet | None], None] = lambda _: None
    controller: type[Controller] = Controller  # replaced only by mutants


class Deadline:
    """Calls `action` at the time that was set last; None: never.

    `action` gets the time at which the call was due: it is late if the process stood still.
    """

    def __init__(self, clock: Clock, action: Callable[[int], None]) -> None:
        self._clock: Final = clock
        self._action: Final = action
        self._time_ms: int | None = None
        self._due_ms = 0
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Whether a call is scheduled."""
        return self._timer is not None

    def set(self, time_ms: int | None) -> None:
        """Change the time of the call."""
        if time_ms == self._time_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._time_ms = time_ms
        if time_ms is not None:
            self._due_ms = max(time_ms, self._clock.now_ms())  # it may have passed before
        self._timer = None if time_ms is None else self._clock.call_at(time_ms, self._due)

    def _due(self) -> None:
        self._time_ms = self._timer = None
        self._action(self._due_ms)
