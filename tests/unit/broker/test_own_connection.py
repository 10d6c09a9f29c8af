"""A broker that asks itself: the same handlers, without a socket."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.server.api import ApiHandler, Disconnect, Reply
from quorumlog.broker.server.own_connection import OwnConnection
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from quorumlog.wire.io.connection import ConnectionLost, RequestTimedOut
from tests.support.groups.asking import asking, create
from tests.support.groups.single_broker import SingleBroker, single_broker
from tests.unit.broker.test_server_transactions import added, begun, complete, ended

ANSWER = WriteTxnMarkersResponse()


def connection_to(broker: SingleBroker, reply: Any) -> OwnConnection:
    """Return a connection whose broker answers WriteTxnMarkers so; an exception is raised."""

    def handle(*_: object) -> Reply:
        if isinstance(reply, Exception):
            raise reply
        return reply  # type: ignore[no-any-return]

    key = WriteTxnMarkersRequest.API_KEY
    handler = ApiHandler(
        api_key=key, min_version=1, max_version=2, handle=handle, advertised_min_version=1
    )
    settings = replace(broker.context.settings, replica_socket_timeout_ms=20)
    context = replace(broker.context, handlers={key: handler}, settings=settings)
    return OwnConnection(context)


async def test_an_answer_comes_now_later_or_from_a_coroutine(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        later: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(later.set_result, ANSWER)

        async def coroutine() -> WriteTxnMarkersResponse:
            return ANSWER

        for reply in (ANSWER, later, coroutine()):
            connection = connection_to(broker, reply)
            assert await connection.send(WriteTxnMarkersRequest()) is ANSWER
            await connection.close()
            assert connection.closed.done()


async def test_what_is_not_answered_in_time_is_given_up(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        never: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        with pytest.raises(RequestTimedOut):
            await connection_to(broker, never).send(WriteTxnMarkersRequest())
        assert never.cancelled()  # the handler learns that no caller waits


@pytest.mark.parametrize("error", [ValueError("a bug"), Disconnect("no")])
async def test_a_handler_that_fails_loses_the_connection_alone(
    tmp_path: Path, error: Exception
) -> None:
    async with single_broker(tmp_path) as broker:
        with pytest.raises(ConnectionLost):
            await connection_to(broker, error).send(WriteTxnMarkersRequest())


async def test_a_broken_invariant_stops_the_node(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        connection = connection_to(broker, InvariantViolation("1: ours"))
        with pytest.raises(InvariantViolation):
            await connection.send(WriteTxnMarkersRequest())


async def test_a_coordinator_asks_its_own_broker_without_a_socket(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        producer = await begun(connection)
        await added(connection, producer)
        await ended(connection, producer, 4, commit=True)
        await complete(connection, "CompleteCommit")
        asked = broker.server.stats.requests
        assert asked[EndTxnRequest.API_KEY]
        assert asked[AddPartitionsToTxnRequest.API_KEY] == 1  # ours, not one of the broker's
        assert WriteTxnMarkersRequest.API_KEY not in asked
