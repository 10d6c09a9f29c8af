"""Checks of aiokafka's internals: errors that the library (0.14) drops become errors of its calls.

There are no public hooks. docs/clients.md describes each fault.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    NotCoordinatorForGroupError,
    UnknownTopicOrPartitionError,
    UnsupportedForMessageFormatError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from quorumlog.wire.codec.error_codes import ErrorCode

_Send = Callable[[Any], Coroutine[Any, Any, Any]]


class CoordinatorChecks:
    """Checks the requests of one consumer to its group's coordinator, and their responses.

    1. An OffsetFetch with an error of the group (KIP-88), or with an unknown partition, raises it:
       the library returns "nothing is committed".
    2. An OffsetCommit is sent in the generation in which `commit` was called: the library repeats
       it in the generation of a later join, for partitions of another member.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator: Final = coordinator
        self._send: Final[_Send] = coordinator._send_req  # noqa: SLF001 - no public hook
        self._generation: int | None = None  # of the commit under way
        coordinator._send_req = self._checked  # noqa: SLF001 - as above

    async def commit(self, consumer: Any, offsets: Mapping[Any, int]) -> None:
        """Commit in the present generation. Raises KafkaError."""
        self._generation = self._coordinator.generation
        try:
            await consumer.commit(offsets)
        finally:
            self._generation = None

    async def _checked(self, request: Any) -> Any:
        is_commit = isinstance(request, OffsetCommitRequest)
        if is_commit and self._generation not in {None, self._coordinator.generation}:
            raise IllegalGenerationError("the member has joined again since the commit began")
        response = await self._send(request)
        if isinstance(request, OffsetFetchRequest):
            self._check_fetched(response)
        return response

    def _check_fetched(self, response: Any) -> None:
        code = getattr(response, "error_code", 0)
        if code != ErrorCode.NONE:
            error = for_code(code)
            if issubclass(error, (NotCoordinatorForGroupError, GroupCoordinatorNotAvailableError)):
                self._coordinator.coordinator_dead()  # the library then looks for the coordinator
            raise error()
        for topic, partitions in response.topics:
            for partition, *_, error_code in partitions:
                if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopicOrPartitionError(f"{topic}-{partition}")


def check_lookups(consumer: Any) -> None:
    """Let a ListOffsets response with UNSUPPORTED_FOR_MESSAGE_FORMAT raise that error.

    The library leaves the partition out of the results: as if its log had no record.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - no public hook
    look_up = fetcher._proc_offset_request  # noqa: SLF001 - as above

    async def checked(node_id: int, asked: Mapping[str, Any]) -> Any:
        found = await look_up(node_id, asked)
        missing = [
            f"{topic}-{partition}"
            for topic, partitions in asked.items()
            for partition, _ in partitions
            if (topic, partition) not in found
        ]
        if missing:
            raise UnsupportedForMessageFormatError(", ".join(missing))
        return found

    fetcher._proc_offset_request = checked  # noqa: SLF001 - as above


class Positions:
    """The positions of a consumer after its last successful poll.

    A poll of the library that raises has already passed records of other partitions, and does not
    return them; `restore` seeks back to them.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer: Final = consumer
        self._assignment: Any = None
        self._reached: dict[Any, int] = {}

    def note(self) -> None:
        """Note the positions: all records below them were returned."""
        subscription = self._consumer._subscription.subscription  # noqa: SLF001 - no public call
        assignment = None if subscription is None else subscription.assignment
        states = (
            {} if assignment is None else {tp: assignment.state_value(tp) for tp in assignment.tps}
        )
        self._assignment = assignment
        self._reached = {
            tp: state.position for tp, state in states.items() if state.has_valid_position
        }

    def restore(self) -> None:
        """Seek back where the library has gone further, in the same assignment."""
        assignment = self._assignment
        if assignment is None or not assignment.active:
            return
        for tp, position in self._reached.items():
            state = assignment.state_value(tp)
            if state is not None and state.has_valid_position and state.position != position:
                self._consumer.seek(tp, position)
