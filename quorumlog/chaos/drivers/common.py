"""Methods, settings and errors that the drivers of several libraries share."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from quorumlog.chaos.drivers.driver import (
    NO_GENERATION,
    Batching,
    DriverError,
    Membership,
    Rebalance,
    Record,
    TopicDriver,
)
from quorumlog.wire.codec.error_codes import ErrorCode


def driver_error(error: BaseException) -> DriverError:
    """Translate an error of aiokafka or kafka-python, which may have Kafka's number as `errno`.

    Never definite: the libraries do not report earlier attempts.
    """
    name = type(error).__name__
    number = getattr(error, "errno", None)
    if isinstance(number, int) and not isinstance(error, OSError):
        with contextlib.suppress(ValueError):
            name = ErrorCode(number).name
    elif name == "CorruptRecordError":  # detected by the client itself
        name = ErrorCode.CORRUPT_MESSAGE.name
    elif isinstance(error, asyncio.InvalidStateError):
        name = "NOT_OPEN"
    return DriverError(name, str(error))


@contextmanager
def translating(
    translate: Callable[[Any], DriverError], *errors: type[Exception]
) -> Iterator[None]:
    """Translate these errors of a library into DriverError."""
    try:
        yield
    except errors as error:
        raise translate(error) from error


def compression_type(batching: Batching) -> str | None:
    """Return the name of the compression; None without a compression."""
    return None if batching.compression == "none" else batching.compression


def member_settings(membership: Membership) -> dict[str, Any]:
    """Return the settings of a group's member, by the names that all Python clients share."""
    return {
        "group_id": membership.group_id,
        "group_instance_id": membership.instance_id,
        "auto_offset_reset": "earliest",  # no record is deleted: only without a commit
        "session_timeout_ms": membership.session_timeout_ms,
        "heartbeat_interval_ms": membership.session_timeout_ms // 10,
        "max_poll_interval_ms": membership.max_poll_interval_ms,
    }


def records_of(polled: Mapping[Any, Iterable[Any]], *, time: str = "timestamp") -> list[Record]:
    """Return the records of a poll, in order per partition. `time`: the library's name for it."""
    return [
        Record(
            record.topic,
            record.partition,
            record.offset,
            record.value or b"",
            record.key,
            tuple(record.headers),
            getattr(record, time),
        )
        for records in polled.values()
        for record in records
    ]


class Rebalancing:
    """The rebalances of a member, as the listener of its library reports them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._changes: list[Rebalance] = []

    def _note(self, change: str, partitions: Iterable[Any]) -> None:
        indexes = tuple(sorted(one.partition for one in partitions))
        self._changes.append(Rebalance(change, indexes, self.generation()))

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def generation(self) -> int:
        """Return NO_GENERATION: the library does not report the generation."""
        return NO_GENERATION


class TopicCreation:
    """Creates topics by the administrator of a driver, whose `create` accepts a config."""

    async def create_topic(self: TopicDriver, bootstrap: str, topic: str, **options: Any) -> None:
        """Create a topic and return when its metadata is committed. Raises DriverError."""
        admin = await self.admin(bootstrap, "creator")
        try:
            await admin.create(topic, **options)
        finally:
            await admin.close()
