"""Usual sets of rights are enough for a client, and it needs each of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from quorumlog import Admin, Consumer, Producer
from quorumlog.broker.authorization.access_control import AccessControl
from quorumlog.broker.guards.registry import OPEN, REFUSED_ANYWAY
from quorumlog.client import KafkaError, NewTopic, TopicPartition
from quorumlog.client.records import GroupMetadata
from quorumlog.node.node_broker import for_clients
from quorumlog.settings.authorization import STANDARD_AUTHORIZER, super_users
from quorumlog.settings.kinds import BadValue
from tests.support.broker.authorized import ADMIN, guarded_broker
from tests.support.groups.asking import coordinator_is_ready, create
from tests.support.groups.single_broker import SETTINGS, SingleBroker

_numbers = count()
Work = Callable[[str], Awaitable[None]]

GROUP = GroupMetadata("g", -1, "", None)


async def write(bootstrap: str) -> None:
    async with Producer(bootstrap) as producer:
        await producer.send_and_wait("t", b"value", partition=0)


async def write_in_a_transaction(bootstrap: str) -> None:
    async with Producer(bootstrap, transactional_id="x") as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"value", partition=0)
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, GROUP)


async def read(bootstrap: str) -> None:
    async with Consumer(bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        async with asyncio.timeout(20):
            while not await consumer.poll(500):
                pass
        await consumer.commit()


async def administer(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        name = f"t-{next(_numbers)}"
        await admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
        await admin.create_partitions({name: 2})
        await admin.delete_topics([name])


ROLES: dict[str, tuple[Work, tuple[str, ...], str]] = {
    "producer": (write, ("T WRITE",), "31"),  # an idempotent producer needs a topic to write to
    "transactional": (
        write_in_a_transaction,
        ("T WRITE", "X WRITE", "G READ", "T READ"),
        "29 53 30 29",
    ),
    "consumer": (read, ("T READ", "G READ"), "29 30"),
    "admin": (administer, ("C CREATE", "T ALTER", "T DELETE"), "29 29 29"),
}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_needs_each_of_its_rights_and_no_others(role: str, tmp_path: Path) -> None:
    work, rights, codes = ROLES[role]
    async with guarded_broker(tmp_path, has_real_verifier=True) as guarded:
        admin = await guarded.connect(ADMIN)
        await create(admin, "t")
        await coordinator_is_ready(admin)
        await write(guarded.broker.bootstrap)
        await (await guarded.connect()).close()  # from now on all clients are Alice
        for right, code in zip(rights, codes.split(), strict=True):
            guarded.permit(*rights, but=[right])
            with pytest.raises(KafkaError) as refused:
                await work(guarded.broker.bootstrap)
            assert refused.value.code == int(code), right
        guarded.permit(*rights)
        await work(guarded.broker.bootstrap)
        await admin.close()


# --- The settings ---


async def test_a_broker_with_an_authorizer_guards_all_handlers_but_not_its_own_requests(
    tmp_path: Path,
) -> None:
    users = "User:admin;User:broker"
    settings = replace(SETTINGS, authorizer_class_name=STANDARD_AUTHORIZER, super_users=users)
    context = SingleBroker(tmp_path, settings).context
    served = for_clients(context)
    assert isinstance(served.access, AccessControl)
    assert context.access is None
    unguarded = {key for key, one in served.handlers.items() if one is context.handlers[key]}
    assert 18 in unguarded
    assert unguarded <= OPEN | REFUSED_ANYWAY
    for principal, expected in ((ADMIN, True), ("User:broker", True), ("User:x", False)):
        question = (principal, "127.0.0.1", 7, 4, "kafka-cluster")
        assert served.access.authorizer.decide(question).is_allowed is expected


async def test_a_broker_without_an_authorizer_has_the_bare_handlers(tmp_path: Path) -> None:
    context = SingleBroker(tmp_path).context
    assert for_clients(context) is context


@pytest.mark.parametrize("text", ["admin", "User:a;b", ":a", "User:"])
def test_a_super_user_is_a_principal(text: str) -> None:
    with pytest.raises(BadValue, match="write it as User:name"):
        super_users(text)
    assert super_users(" User:a ; User:b;") == {"User:a", "User:b"}
