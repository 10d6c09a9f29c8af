"""metadata_linearizable: topics are created and deleted through the metadata quorum.

It proves or refutes that the existence of a topic is linearizable at the controller: a creation
succeeds only if the topic is absent, a deletion only if it exists, and a refusal
(TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC_OR_PARTITION) proves the opposite. A broker answers queries
from its own copy of the metadata, which may lag behind the controller (KIP-500). Such responses
prove nothing, so brokers are not queried. In the end every topic is created once more, which shows
whether it existed.

A history holds `create` and `delete` (`f`); the value is 1 if it was done, 0 if it was refused. A
name is used for some operations only, so that the check stays cheap. The checker is `topics`.
"""

import asyncio
import random
from dataclasses import dataclass
from itertools import count
from typing import Final, cast

from quorumlog.chaos.drivers.driver import DriverError, TopicAdmin, TopicDriver
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.history.model import DONE, REFUSED
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    Setup,
    Workload,
    before,
    opened,
    option,
    use_clients,
)
from quorumlog.wire.codec.error_codes import ErrorCode

_REFUSALS: Final = frozenset(
    {ErrorCode.TOPIC_ALREADY_EXISTS.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """The number of clients, the rate of changes, and the use of a name."""

    rate: float = option(30.0, "creations and deletions a second, while the quorum answers")
    clients: int = option(5, "clients that create and delete, one topic at a time each")
    names: int = option(3, "names in use at a time")
    changes_per_name: int = option(20, "creations and deletions before a name is given up")


class MetadataLinearizable:
    """The lanes of one run."""

    def __init__(self, setup: Setup[MetadataOptions]) -> None:
        self._setup: Final = setup
        self._history: Final = setup.history
        self._new_process: Final = count().__next__
        self._uses: list[int] = []  # of each name

    async def work(self, working: asyncio.Event) -> None:
        """Create and delete until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            for lane in range(self._setup.options.clients):
                tasks.create_task(self._resume(self._setup.rng(f"client {lane}"), working))

    async def _resume(self, rng: random.Random, working: asyncio.Event) -> None:
        options = self._setup.options
        gap_s = options.clients / options.rate

        async def change(admin: TopicAdmin, process: int) -> bool:
            await asyncio.sleep(rng.expovariate(1 / gap_s))
            name = self._name(rng)
            return await self._change(admin, process, name, creates=rng.random() < 0.5)

        await use_clients(working.is_set, self._open, change)

    async def _open(self) -> tuple[int, TopicAdmin | None]:
        process = self._new_process()
        driver = cast(TopicDriver, self._setup.driver)
        return process, await opened(driver.admin(self._setup.bootstrap, f"a{process}"))

    def _name(self, rng: random.Random) -> int:
        """Choose one of the names in use; a new name replaces a used-up one."""
        options = self._setup.options
        in_use = [name for name, uses in enumerate(self._uses) if uses < options.changes_per_name]
        while len(in_use) < options.names:
            in_use.append(len(self._uses))
            self._uses.append(0)
        name = rng.choice(in_use)
        self._uses[name] += 1
        return name

    async def _change(self, admin: TopicAdmin, process: int, number: int, *, creates: bool) -> bool:
        """Create or delete a topic; return whether the outcome is certain."""
        name = f"{self._setup.topic}-x{number}"
        f = "create" if creates else "delete"
        meant = Message(name, UNKNOWN_OFFSET, DONE)
        self._history.append(process, "invoke", f, [meant])
        outcome, told, said = "ok", meant, ""
        try:
            if creates:
                await admin.create(name, partitions=1, replication_factor=1)
            else:
                await admin.delete(name)
        except DriverError as error:
            said = str(error)
            if error.code in _REFUSALS:
                told = meant._replace(value=REFUSED)
            else:
                outcome = "fail" if error.definite else "info"
        self._history.append(process, outcome, f, [told], error=said)
        if outcome != "ok":
            await asyncio.sleep(REOPEN_S)
        return outcome != "info"

    async def final_reads(self, timeout_s: float) -> bool:
        """Create every topic once more; return whether all attempts succeeded in time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        left = [*range(len(self._uses))]

        async def create(admin: TopicAdmin, process: int) -> bool:
            is_sure = await self._change(admin, process, left[0], creates=True)
            del left[:is_sure]
            return is_sure

        await use_clients(lambda: bool(left) and before(deadline_s), self._open, create)
        return not left


WORKLOAD: Final = Workload(
    name="metadata_linearizable",
    text="topics are created and deleted; whether one exists is linearizable at the controller",
    options=MetadataOptions,
    clients=MetadataLinearizable,
    model="topics",
    requires=frozenset({"topics"}),
    offers=frozenset({"create", "delete"}),
)
