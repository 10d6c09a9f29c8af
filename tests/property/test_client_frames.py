"""What real clients send, with changed bytes: it is answered, or closes its connection.

`tests/data/client_frames` has the frames (`tools/record_client_frames.py`). Requests that we write
ourselves are in `test_transaction_requests.py`.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from tests.property.test_transaction_requests import Attacked
from tests.support.broker.peer import connected
from tests.support.sizes import tries
from tests.support.transactions.hostile_requests import mutated

DIRECTORY = Path(__file__).parents[1] / "data/client_frames"
CLIENTS = ("aiokafka", "confluent", "kafka_python")
OF_TRANSACTIONS = {22, 24, 25, 26, 28}  # InitProducerId, Add..., EndTxn, TxnOffsetCommit
OF_KIP_848 = {68}  # ConsumerGroupHeartbeat
CHANGED = tries(200)  # frames of each client


def frames(client: str) -> Iterator[bytes]:
    data = (DIRECTORY / f"{client}.bin").read_bytes()
    while data:
        size = int.from_bytes(data[:4], "big")
        yield data[4 : 4 + size]
        data = data[4 + size :]


def api_key(frame: bytes) -> int:
    return int.from_bytes(frame[:2], "big")


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def answered(port: int, frame: bytes) -> bytes:
    async with connected(port) as peer:
        peer.writer.write(framed(frame))
        return await peer.frame()


async def send(port: int, body: bytes) -> None:
    """Send a frame, and no more; return when the connection is closed."""
    async with connected(port) as peer:
        peer.writer.write(framed(body))
        peer.writer.write_eof()
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):  # closed before all was read
                while await peer.reader.read(65_536):
                    pass


def test_the_frames_are_those_of_transactions_and_of_both_protocols_of_groups() -> None:
    keys = {client: {*map(api_key, frames(client))} for client in CLIENTS}
    for found in keys.values():
        assert found >= OF_TRANSACTIONS
        assert found <= HANDLERS.keys()
    assert keys["confluent"] >= OF_KIP_848
    assert not OF_KIP_848 & (keys["aiokafka"] | keys["kafka_python"])


@pytest.mark.parametrize("client", CLIENTS)
async def test_frames_of_a_client_are_answered_and_changed_ones_do_no_harm(
    client: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacked = Attacked(tmp_path, seed=CLIENTS.index(client))
    recorded = [*frames(client)]
    async with attacked.serving() as (broker, own):
        await attacked.prepare(own)
        for frame in recorded:
            answer = await answered(broker.port, frame)
            assert answer[:4] == frame[4:8], "the answer has the request's correlation id"
        for _ in range(CHANGED):
            frame = attacked.draw.choice(recorded)
            await send(broker.port, mutated(attacked.draw, frame))
        await attacked.still_serves(broker, own)
    await attacked.starts_again()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
