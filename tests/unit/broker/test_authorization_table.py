"""Each API needs the rights of the table, and no others: docs/authorization.md."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.guards.registry import GUARDS, OPEN, REFUSED_ANYWAY
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import UnencodableMessage
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import request_class
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.authorization_table import FILTERS, ROWS, Row
from tests.support.broker.authorized import (
    ADMIN,
    EVERYTHING,
    Guarded,
    built,
    errors_in,
    guarded_broker,
)
from tests.support.groups.asking import coordinator_is_ready, create

KEYS = {api.name: key for key, api in APIS.items()}
AUTHORIZATION_ERRORS = {29, 30, 31, 53, 65}
OF_THE_REQUEST = {ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID}  # not of a topic


@asynccontextmanager
async def ready_broker(directory: Path) -> AsyncIterator[tuple[Guarded, bytes]]:
    """A broker that is ready to coordinate, and the id of its topic t."""
    async with guarded_broker(directory) as guarded:
        admin = await guarded.connect(ADMIN)
        topic_id = await create(admin, "t")
        await coordinator_is_ready(admin)
        await admin.close()
        yield guarded, topic_id


async def sent(connection: KafkaConnection, row: Row, topic_id: bytes) -> dict[str, set[int]]:
    request: Any = built(request_class(KEYS[row.api]), row.body, topic_id)
    async with asyncio.timeout(10):
        return errors_in(await connection.send(request, version=row.version))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
async def test_a_request_needs_the_rights_of_the_table_and_no_others(
    row: Row, tmp_path: Path
) -> None:
    async with ready_broker(tmp_path) as (guarded, topic_id):
        client = await guarded.connect()
        for right, expected in row.needs.items():
            guarded.permit(*EVERYTHING, but=right.split(" or "))
            errors = await sent(client, row, topic_id)
            assert errors == {place: {code} for place, code in expected.items()}, right
        choices = [right.split(" or ") for right in row.needs]
        for place in range(max(map(len, choices))):
            guarded.permit(*(one[min(place, len(one) - 1)] for one in choices))
            errors = await sent(client, row, topic_id)
            assert not AUTHORIZATION_ERRORS & set().union(*errors.values()), errors
        await client.close()


def test_the_table_has_every_api_that_is_served() -> None:
    served = {APIS[key].name for key in HANDLERS.keys() - OPEN - REFUSED_ANYWAY}
    assert served == {row.api for row in ROWS} | FILTERS
    assert HANDLERS.keys() <= GUARDS.keys() | OPEN | REFUSED_ANYWAY


async def test_a_client_without_rights_is_refused_in_each_version_of_each_api(
    tmp_path: Path,
) -> None:
    """Each refusal can be encoded, and says nothing but that it is one."""
    async with ready_broker(tmp_path) as (guarded, topic_id):
        client = await guarded.connect()
        for row in ROWS:
            key = KEYS[row.api]
            handler = HANDLERS[key]
            for version in range(handler.min_version, handler.max_version + 1):
                request: Any = built(request_class(key), row.body, topic_id)
                with suppress(UnencodableMessage):  # this version has no such request
                    async with asyncio.timeout(10):
                        response = await client.send(request, version=version)
                    codes = set().union(*errors_in(response).values())
                    assert codes <= AUTHORIZATION_ERRORS | OF_THE_REQUEST, (row.label, version)
        await client.close()
