"""Lookups of offsets by confluent-kafka: a partition without a response is an error."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest

from quorumlog.chaos.drivers import confluent_admin
from quorumlog.chaos.drivers.confluent_admin import ConfluentAdmin
from quorumlog.chaos.drivers.driver import DriverError, OffsetAt


class Found(NamedTuple):
    offset: int
    timestamp: int


class Library:
    """An AdminClient whose lookups have these results, by partition; of others, none in time."""

    def __init__(self, results: Mapping[int, Found]) -> None:
        self._results = results

    def list_offsets(self, wanted: Mapping[Any, object], **_: object) -> dict[Any, Future[Found]]:
        asked: dict[Any, Future[Found]] = {place: Future() for place in wanted}
        for place, future in asked.items():
            if place.partition in self._results:
                future.set_result(self._results[place.partition])
        return asked


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ConfluentAdmin]:
    def make(**results: Found) -> ConfluentAdmin:
        library = Library({int(name[1:]): one for name, one in results.items()})
        monkeypatch.setattr(confluent_admin, "AdminClient", lambda _: library)
        return ConfluentAdmin({"bootstrap.servers": "b"}, "o")

    return make


async def test_a_partition_without_a_response_is_an_error(
    admin: Callable[..., ConfluentAdmin],
) -> None:
    lookup = admin(p0=Found(3, 50), p1=Found(-1001, -1))
    with pytest.raises(DriverError, match="_NO_OFFSET: the library has no response for t-1"):
        await lookup.ask("t", {0: 40, 1: 40})


async def test_a_lookup_that_does_not_end_is_an_error(
    admin: Callable[..., ConfluentAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent_admin, "_QUESTION_TIMEOUT_S", 0.001)
    with pytest.raises(DriverError, match="_TIMED_OUT"):
        await admin(p0=Found(3, 50)).ask("t", {0: 40, 1: 40})


async def test_no_record_of_such_a_time_is_a_response(admin: Callable[..., ConfluentAdmin]) -> None:
    lookup = admin(p0=Found(3, 50), p1=Found(-1, -1))
    assert await lookup.ask("t", {0: 40, 1: 40}) == {0: OffsetAt(3, 50), 1: OffsetAt(-1, -1)}
