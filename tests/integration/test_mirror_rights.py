"""A mirror of topics that it does not find, or may not read."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.cli.output import EXIT_INTERRUPTED
from quorumlog.client import Acl, AclFilter
from quorumlog.mirror import MirrorRefused, TopicsStopped
from quorumlog.mirror.io.status import read_status
from quorumlog.mirror.reports import Report
from quorumlog.settings.authorization import STANDARD_AUTHORIZER
from tests.support.mirrors import (
    Sides,
    copy_once,
    create,
    numbers,
    running,
    send,
    settings,
    until,
    values_at,
)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mirror")]
AUTHORIZER = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
EVERYONE = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    """One cluster as both sides: the copies have a prefix."""
    with LocalCluster(nodes=1, config=AUTHORIZER) as cluster:
        yield Sides(cluster.bootstrap, cluster.bootstrap)


def acl(topic: str, operation: str, permission: str = "allow", principal: str = EVERYONE) -> Acl:
    return Acl(
        resource_type="topic",
        resource_name=topic,
        principal=principal,
        operation=operation,
        permission=permission,
    )


async def test_a_mirror_without_a_topic_waits_aloud_until_the_first_appears(sides: Sides) -> None:
    await create(sides.source, "absent-before")
    wanted = settings(sides, "absent", alias="absent")
    reports: list[Report] = []
    async with running(wanted, reports.append) as task:

        async def has_reported(text: str) -> bool:
            return any(text in one.message for one in reports)

        await until(lambda: has_reported("the mirror waits"), task)
        assert "must match the whole name, such as absent-before" in reports[0].message
        await create(sides.source, "absent")
        await send(sides.source, "absent", numbers(0, 5))
        await until(lambda: has_reported("copies its first topics: absent"), task)
        await until(lambda: has_copies(sides, "absent.absent", 5), task)
    assert len([one for one in reports if "the mirror waits" in one.message]) == 1


async def has_copies(sides: Sides, topic: str, count: int) -> bool:
    async with Admin(sides.target) as admin:
        if topic not in await admin.list_topics():
            return False
    return len(await values_at(sides.target, topic)) >= count


async def test_a_mirror_of_no_topic_that_copies_once_ends_with_the_remedy(sides: Sides) -> None:
    with pytest.raises(MirrorRefused, match=r"no topic that matches never: .*--topic"):
        await copy_once(settings(sides, "never", once=True))


@pytest.fixture
def _heeded() -> Iterator[None]:
    """Ctrl-C is not ignored: a shell starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heeded")
async def test_the_command_says_that_it_waits_and_prints_its_document_at_ctrl_c(
    sides: Sides,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quorumlog", "mirror", "--json", "--topic", "later"),
        *("--from", sides.source, "--to", sides.target, "--alias", "later"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    while not (said := (await process.stderr.readline()).decode()).startswith("mirror: "):
        assert said  # else it ended; on a slow machine it reports slow answers
    assert "the source has no topic that matches later" in said
    assert said.endswith("the mirror waits, and searches again every 30 s\n")
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    assert process.returncode == EXIT_INTERRUPTED
    assert json.loads(out) == {"records": 0, "bytes": 0}


async def test_topics_that_may_not_be_read_stop_and_the_others_are_copied(sides: Sides) -> None:
    open_one, closed = "rights-open", "rights-closed"
    for topic in (open_one, closed):
        await create(sides.source, topic)
        await send(sides.source, topic, numbers(0, 20))
    rights = [acl(closed, "all"), acl(closed, "read", "deny")]
    wanted = settings(sides, "rights-.*", alias="rights", config_interval_ms=2_000)
    async with Admin(sides.source) as admin:
        await admin.create_acls(rights)
        with pytest.raises(TopicsStopped, match=f"{closed}: the source refuses.*READ on {closed}"):
            await copy_once(settings(sides, "rights-.*", alias="rights", once=True))
        assert await values_at(sides.target, f"rights.{open_one}") == numbers(0, 20)
        checkpoint = (await read_status(wanted)).checkpoint
        assert checkpoint is not None
        assert [*(checkpoint.stopped or {})] == [closed]
        shown = await status_of("rights", sides)
        lags = {one["topic"]: (one["lag"], one["lag_ms"]) for one in shown["partitions"]}
        assert lags == {open_one: (0, 0), closed: (20, None)}

        reports: list[Report] = []
        async with running(wanted, reports.append) as task:

            async def is_stopped() -> bool:
                return any(one.message.startswith("stopped: ") for one in reports)

            await until(is_stopped, task)
            await send(sides.source, open_one, numbers(20, 30))
            await until(lambda: has_copies(sides, f"rights.{open_one}", 30), task)
            await admin.delete_acls([AclFilter(resource_name=closed, operation="read")])
            await until(lambda: has_copies(sides, f"rights.{closed}", 20), task)
        messages = [one.message for one in reports if one.subject == closed]
        assert messages[0].startswith("stopped: the source refuses its records: ")
        assert messages[1:] == ["is copied again"]


async def status_of(alias: str, sides: Sides) -> dict[str, list[dict[str, object]]]:
    """Return the document of `mirror status`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quorumlog", "mirror", "status", "--json", "--alias", alias),
        *("--from", sides.source, "--to", sides.target),
        stdout=subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, list[dict[str, object]]] = json.loads(out)
    return found


async def test_a_mirror_of_one_topic_that_may_not_be_read_ends_with_the_reason(
    sides: Sides,
) -> None:
    await create(sides.source, "secret")
    await send(sides.source, "secret", numbers(0, 5))
    async with Admin(sides.source) as admin:
        await admin.create_acls([acl("secret", "all"), acl("secret", "read", "deny")])
    wanted = settings(sides, "secret", alias="secret")
    with pytest.raises(TopicsStopped, match="may lack READ on secret"):
        await copy_once(wanted)
    checkpoint = (await read_status(wanted)).checkpoint
    assert checkpoint is not None
    assert "READ" in (checkpoint.stopped or {})["secret"]


async def test_acls_are_copied_on_request(sides: Sides) -> None:
    topic, copy, other = "guarded", "guarded.guarded", "User:reader"
    own = replace(acl("guarded.", "all"), pattern_type="prefixed")  # of the mirror, on its copies
    await create(sides.source, topic)
    await send(sides.source, topic, numbers(0, 5))
    copied = AclFilter(resource_name=copy, pattern_type="literal")
    async with Admin(sides.source) as admin:
        rights = acl(topic, "all"), acl(topic, "write", "allow", other)
        await admin.create_acls([own, *rights, acl(topic, "read", "deny", other)])
        await copy_once(settings(sides, topic, once=True))
        assert await admin.describe_acls(copied) == []
        await copy_once(settings(sides, topic, once=True, acls=True))
        wanted = acl(copy, "read"), acl(copy, "read", "deny", other)
        assert await admin.describe_acls(copied) == sorted(wanted)
