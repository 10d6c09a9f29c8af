"""txn_transfer: tellers move money between accounts of a compacted topic, one transaction each.

The last record of an account is its balance. A transfer is a transaction that writes two balances,
mostly to two partitions, so a torn one changes the total of the branch. Each branch has one teller,
which reads the balances when it begins. Some tellers linger with a transaction open while a
successor with their transactional id takes over, and then try to commit. A new teller first fences
the old one; then it appends a mark to each partition and reads, at read_committed, up to the marks:
that is a `read` of all balances of its branch. The checker is `bank`: the total never changes, and
no account is below 0.
"""

import asyncio
import json
import random
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from quorumlog.chaos.drivers.driver import CommittedReader, SendFailed, TransactionalProducer
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.sends import record_of
from quorumlog.chaos.workloads.transactions import (
    Lives,
    raise_first,
    send_in_order,
    transact,
    transactions_of,
)
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    LaneOptions,
    Setup,
    Workload,
    before,
    one_topic,
    opened,
    option,
)

_POLL_MS: Final = 200
_READ_S: Final = 20.0  # the open transaction of a dead client is aborted sooner
_MARK: Final = b"mark"
_FIRST_BALANCE: Final = 100
_LINGERS_S: Final = 1.0
_COMPACTED: Final = {"cleanup.policy": "compact"}
Balances = dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnTransferOptions(LaneOptions):
    """The number of tellers and accounts, and the failures of tellers."""

    rate: float = option(40.0, "transfers a second of all tellers, while brokers answer")
    producers: int = option(3, "branches, with one teller each")
    consumers: int = option(0, "without effect: tellers read", above=-1)
    final_readers: int = option(2, "clients that read every branch at the end")
    accounts: int = option(6, "accounts of a branch, spread over the partitions", above=1)
    aborts: float = option(0.1, "the share of transfers that are aborted on purpose", above=-1)
    zombies: float = option(
        0.05, "the share that is committed after a successor has started", above=-1
    )


class TxnTransfer:
    """The lanes of one run. Invariant: no transfer changes the total of its branch."""

    def __init__(self, setup: Setup[TxnTransferOptions]) -> None:
        self._setup: Final = setup
        self._new_process: Final = count().__next__
        self._is_open: Final[set[int]] = set()  # branches whose accounts are committed

    async def work(self, working: asyncio.Event) -> None:
        """Transfer until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            for branch in range(self._setup.options.producers):
                rng = self._setup.rng(f"teller {branch}")
                live = partial(self._live, branch, rng, working)
                tasks.create_task(Lives(tasks, working).succeed(live))

    async def _live(
        self, branch: int, rng: random.Random, working: asyncio.Event, is_replaced: asyncio.Event
    ) -> None:
        setup, process = self._setup, self._new_process()
        name = f"{setup.topic}-teller-{branch}"
        made = transactions_of(setup).transactional(setup.bootstrap, f"p{process}", name)
        producer = await opened(made)
        if producer is None:
            return
        try:
            balances = await self._read(process, branch)
            if balances is not None:
                teller = _Teller(setup, producer, process, branch, balances)
                await self._serve(teller, rng, working, is_replaced)
        finally:
            await producer.close()

    async def _serve(
        self,
        teller: "_Teller",
        rng: random.Random,
        working: asyncio.Event,
        is_replaced: asyncio.Event,
    ) -> None:
        """Open the accounts if there are none; transfer until the teller cannot be used again."""
        options = self._setup.options
        gap_s = options.producers / options.rate
        if not teller.balances:
            first = dict.fromkeys(range(options.accounts), _FIRST_BALANCE)
            if not await teller.write(first, {"opened": options.accounts}):
                return
            self._is_open.add(teller.branch)
        while working.is_set() and teller.is_of_use and not is_replaced.is_set():
            await asyncio.sleep(rng.expovariate(1 / gap_s))
            source, target = rng.sample(range(options.accounts), 2)
            amount = rng.randrange(teller.balances[source] + 1)
            changed = {
                source: teller.balances[source] - amount,
                target: teller.balances[target] + amount,
            }
            is_zombie = rng.random() < options.zombies
            await teller.write(
                changed,
                {"from": source, "to": target, "amount": amount},
                commits=rng.random() >= options.aborts,
                successor=is_replaced if is_zombie else None,
                lingers_s=rng.expovariate(1 / _LINGERS_S),
            )

    async def _read(self, process: int, branch: int) -> Balances | None:
        """Read all balances of a branch, {} if it has none yet; None if that failed."""
        setup = self._setup
        name = _name(branch)
        meant = [Message(name, UNKNOWN_OFFSET, 0, text="null")]
        setup.history.append(process, "invoke", "read", meant)
        reader = await opened(
            transactions_of(setup).reader(setup.bootstrap, f"c{process}", f"c{process}")
        )
        if reader is None:
            setup.history.append(process, "fail", "read", meant, error="NOT_OPEN: no answer")
            return None
        try:
            marks = await self._mark(process)
            async with asyncio.timeout(_READ_S):
                balances = await self._last_below(reader, marks, branch)
        except (SendFailed, ConnectionError, TimeoutError) as error:
            said = str(error) or "NO_ANSWER: the log was not read up to the marks"
            setup.history.append(process, "fail", "read", meant, error=said)
            await asyncio.sleep(REOPEN_S)
            return None
        finally:
            await reader.close()
        if not balances and branch not in self._is_open:
            nothing = "NOTHING: no accounts exist yet"
            setup.history.append(process, "fail", "read", meant, error=nothing)
            return balances
        shown = {str(one): balances.get(one) for one in range(setup.options.accounts)}
        told = [Message(name, UNKNOWN_OFFSET, 0, text=json.dumps(shown))]
        setup.history.append(process, "ok", "read", told)
        # The history has the wrong balances; a teller that continued with them would hide them.
        is_whole = all(amount is not None for amount in shown.values())
        return balances if is_whole else None

    async def _mark(self, process: int) -> dict[int, int]:
        """Append a mark to each partition; return the offsets. Raises SendFailed, DriverError."""
        setup = self._setup
        producer = await setup.driver.producer(setup.bootstrap, f"p{process}-marks")
        try:
            return {
                index: await (await producer.send(setup.topic, index, b"", key=_MARK))
                for index in range(setup.partitions)
            }
        finally:
            await producer.close()

    async def _last_below(
        self, reader: CommittedReader, marks: dict[int, int], branch: int
    ) -> Balances:
        """Read every partition up to its mark; return the last balance of each account."""
        await reader.assign(self._setup.topic, [*marks])
        balances: Balances = {}
        positions = dict.fromkeys(marks, 0)
        while any(positions[index] <= mark for index, mark in marks.items()):
            for record in await reader.poll(_POLL_MS):
                positions[record.partition] = record.offset + 1
                of_branch, _, account = (record.key or b"").partition(b"/")
                if of_branch == _name(branch).encode() and record.offset < marks[record.partition]:
                    balances[int(account)] = int(record.value)
        return balances

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every branch with every final reader; return whether all finished in time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        readers = range(self._setup.options.final_readers)
        return all(await asyncio.gather(*(self._read_all(deadline_s) for _ in readers)))

    async def _read_all(self, deadline_s: float) -> bool:
        left = [*range(self._setup.options.producers)]
        while left and before(deadline_s):
            if await self._read(self._new_process(), left[0]) is not None:
                del left[0]
        return not left


class _Teller:
    """One life of a teller: `balances` are the committed balances."""

    def __init__(
        self,
        setup: Setup[TxnTransferOptions],
        producer: TransactionalProducer,
        process: int,
        branch: int,
        balances: Balances,
    ) -> None:
        self._setup: Final = setup
        self._producer: Final = producer
        self._process: Final = process
        self.branch: Final = branch
        self.balances: Final = balances
        self.is_of_use = True

    async def write(
        self,
        changed: Balances,
        what: dict[str, int],
        *,
        commits: bool = True,
        successor: asyncio.Event | None = None,
        lingers_s: float = 0.0,
    ) -> bool:
        """Write balances in one transaction; return whether it is committed."""
        setup, name = self._setup, _name(self.branch)
        meant = [Message(name, UNKNOWN_OFFSET, 0, text=json.dumps(what))]
        setup.history.append(self._process, "invoke", "transfer", meant)

        async def work() -> bool:
            records = [
                (
                    setup.topic,
                    account % setup.partitions,
                    record_of(setup, balance, key=f"{name}/{account}".encode()),
                )
                for account, balance in changed.items()
            ]
            raise_first(await send_in_order(self._producer, records))
            if successor is not None:
                successor.set()
                await asyncio.sleep(lingers_s)
            return commits

        outcome, error, is_of_use = await transact(setup, self._producer, work, [])
        setup.history.append(self._process, outcome, "transfer", meant, error=error)
        self.is_of_use = is_of_use
        if outcome == "ok":
            self.balances.update(changed)
        return outcome == "ok"


def _name(branch: int) -> str:
    return f"branch-{branch}"


WORKLOAD: Final = Workload(
    name="txn_transfer",
    text="tellers transfer between accounts in transactions; a branch's total stays constant",
    options=TxnTransferOptions,
    clients=TxnTransfer,
    topics=partial(one_topic, config=_COMPACTED),
    model="bank",
    requires=frozenset({"transactions"}),
    offers=frozenset({"transfer"}),
)
