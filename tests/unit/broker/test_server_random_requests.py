"""Requests that are well-formed and make no sense: each gets an answer that can be read.

Never a closed connection, never an error in the log: what a client may say, a handler can refuse.
"""

import asyncio
import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.wire.codec.message import Message, Struct
from quorumlog.wire.codec.schemas import request_class
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.authorized import Guarded
from tests.support.broker.peer import Peer, connected
from tests.support.groups.asking import coordinator_is_ready, create, versions
from tests.support.groups.single_broker import SETTINGS, single_broker
from tests.support.sizes import tries
from tests.support.wire.records_oracle import random_message

SAMPLES = tries(25)
LONGEST = "x" * 32_767  # what fits into a string of the old form
STRINGS = (
    "t",
    "t",
    "g",
    "g",
    "i",
    "",
    ".",
    "a/b",
    "__consumer_offsets",
    "\N{PILE OF POO}",
    LONGEST,
)
FEW = {
    "timeout_ms": (-1, 0, 10),
    "max_wait_ms": (-1, 0, 10),
    "rebalance_timeout_ms": (-1, 0, 10),
    "session_timeout_ms": (99, 100, 6000),
    "num_partitions": (-1, 0, 1, 2),
    "port": (0, 9093, 65_535),  # not signed
    "acks": (-1,),  # with 0 there would be no answer to wait for
}


def make_plausible(draw: random.Random, struct: Struct, learned: list[str]) -> None:
    """Use names that exist, or that nobody should use; wait for nothing long; answer always."""
    for name in struct.__slots__:
        value = getattr(struct, name)
        if isinstance(value, list):
            value = [plausible(draw, name, element, learned) for element in value]
        setattr(struct, name, plausible(draw, name, value, learned))


def plausible(draw: random.Random, name: str, value: Any, learned: list[str]) -> Any:
    match value:
        case Struct():
            make_plausible(draw, value, learned)
        case str():
            pool = learned if name == "member_id" and draw.random() < 0.7 else STRINGS
            return draw.choice(pool)
        case int() if name in FEW:
            return draw.choice(FEW[name])
        case int() if not isinstance(value, bool) and draw.random() < 0.7:
            return draw.randint(-1, 2)
    return value


async def ask(peer: Peer, request: Any, version: int) -> Message:
    peer.send(request, 7, version)
    correlation_id, response = await peer.answer(request.API_KEY, version)
    assert correlation_id == 7
    return response


@pytest.mark.parametrize("rights", [None, (), ("T READ", "G READ", "X WRITE", "C DESCRIBE")])
@pytest.mark.parametrize("seed", range(3))
async def test_every_request_is_answered(
    seed: int, rights: tuple[str, ...] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`rights`: of the client, at a broker with an authorizer; None: without one."""
    with caplog.at_level(logging.ERROR):
        draw = random.Random(seed)
        settings = replace(SETTINGS, auto_create_topics_enable=False, group_max_size=2)
        async with single_broker(tmp_path, settings) as broker:
            client = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
            await create(client, "t")
            await coordinator_is_ready(client)
            await client.close()
            if rights is not None:
                guarded = Guarded(broker)
                guarded.permit(*rights)
                await (await guarded.connect()).close()  # the next clients have these rights
            learned = [""]
            asked = [key for key in sorted(HANDLERS) for _ in range(SAMPLES)]
            draw.shuffle(asked)
            async with connected(broker.port) as peer:
                for api_key in asked:
                    version = draw.choice(versions(api_key))
                    request = random_message(draw, request_class(api_key), version)
                    make_plausible(draw, request, learned)
                    response = await ask(peer, request, version)
                    learned.append(getattr(response, "member_id", None) or "")
            await asyncio.sleep(0)
            assert broker.violations == []
    assert caplog.messages == []
