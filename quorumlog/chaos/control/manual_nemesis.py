"""Breaks a cluster by hand, in the middle of a test, and heals it at the test's end.

Each verb is executed by a back end of the lab, on an event loop in another thread. Code without an
event loop waits for the verb's end; a coroutine receives an awaitable, so that its own loop runs
on.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Self, Unpack

from quorumlog.chaos.back_ends.back_end import BackEnd
from quorumlog.chaos.control.acts import (
    MISTAKES,
    Act,
    NodeIds,
    NoSuchNode,
    Passing,
    Target,
    in_coroutine,
    is_mistake,
    known_role,
    names,
    of_nodes,
    require_running,
    require_topic,
)
from quorumlog.chaos.control.broken_nodes import BrokenNodes
from quorumlog.chaos.control.error_rules import (
    ErrorRules,
    Limits,
    Rule,
    RuleFor,
    answer_of,
    observation_of,
)
from quorumlog.chaos.control.inflicted import InflictedFaults, Record, fault_by_hand
from quorumlog.chaos.faults.answers import OfOneTopic
from quorumlog.chaos.faults.fault import ALL, CLIENT, UNDONE_BY, Scene, StepFault
from quorumlog.chaos.faults.node_groups import hit_group, is_group, require_rack
from quorumlog.chaos.faults.rows import details_of
from quorumlog.client.sync.loop_thread import LoopThread

_ROLE_TIMEOUT_S: Final = 15.0  # an election may be running
_ROLE_POLL_S: Final = 0.05
_ACTION_IDS: Final = itertools.count(1)  # of all nemeses: several may act on the same links
_TOPIC_WAIT_S: Final = 1.0  # a topic that was just created is not in every node's metadata yet
_BROKEN_BY: Final = {"start": "kill", "resume": "pause"}


__tracebackhide__ = is_mistake  # of every function in this module


class ManualNemesis:
    """The verbs of a test.

    Verbs are executed one after the other, in the order of the calls. A role is resolved at that
    moment, by the cluster's own status, to a running node that is not paused. `topic`: the topic of
    the leaders and followers; None: each of `topics()`.
    The end of the block heals; but if the cluster ends with the test (`outlives` is False), dead
    nodes stay dead.
    """

    def __init__(
        self,
        back_end: BackEnd,
        *,
        topics: Callable[[], Sequence[str]],
        topic: str | None,
        seed: int,
        record: Record,
        outlives: bool = True,
    ) -> None:
        self._back_end: Final = back_end
        self._topics: Final = topics
        self._topic: Final = topic
        self._record: Final = record
        self._outlives: Final = outlives
        self._rng: Final = random.Random(seed)  # noqa: S311 - a test must be repeatable
        self._in_line: Final = asyncio.Lock()
        self._begun: Final[list[Future[NodeIds]]] = []
        self._number = 0  # of the last fault, as in the rows of the history
        self._broken: Final = BrokenNodes()
        self._rules: Final = ErrorRules(back_end)
        self._inflicted: Final = InflictedFaults(
            back_end, self._rules, record, held_by_verbs=self._broken.held
        )
        self._loop: LoopThread | None = None

    def __enter__(self) -> Self:
        self._loop = LoopThread.acquire(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Heal; then raise the error of an unawaited verb."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.run(self._after_others(self._healed(starts=self._outlives)))
        finally:
            self._loop = None
            loop.release(self)
        for future in self._begun:
            future.result()

    def complaint(self) -> str | None:
        """Wait for all unawaited verbs; return the error of the first failed one.

        The error is reported once: here, or at the end of the block. Without a failed verb: the
        error of a rule with answers that has matched no request.
        """
        errors = [error for future in self._begun if (error := future.exception()) is not None]
        self._begun.clear()
        if not errors:
            if self._loop is not None:
                self._blocking(self._count())
            return self._rules.complaint()
        return f"a verb of the nemesis that was not awaited has failed: {errors[0]}"

    def kill(self, target: Target = "any", *, topic: str | None = None) -> Act:
        """SIGKILL to the nodes; they are dead at the verb's end, until `start`."""
        return self._begin(self._break("kill", of_nodes(target), topic), target)

    def pause(self, target: Target = "any", *, topic: str | None = None) -> Act:
        """SIGSTOP to the nodes: their connections stay open, without responses."""
        return self._begin(self._break("pause", of_nodes(target), topic), target)

    def resume(self, target: int | Sequence[int] | None = None) -> Act:
        """SIGCONT to the nodes; None: to all paused nodes."""
        return self._begin(self._mend("resume", target), target)

    def start(self, target: int | Sequence[int] | None = None) -> Act:
        """Start the nodes again and wait until they take part; None: all dead nodes."""
        return self._begin(self._mend("start", target), target)

    def heal(self) -> Act:
        """End all faults, resume and start all nodes, and wait until every node takes part."""
        return self._begin(self._healed())

    def killed(self, target: Target = "any", *, topic: str | None = None) -> Passing:
        """Return a block that kills the nodes, and starts them at its end."""
        return self._broken_for("kill", target, topic)

    def paused(self, target: Target = "any", *, topic: str | None = None) -> Passing:
        """Return a block that pauses the nodes, and resumes them at its end."""
        return self._broken_for("pause", target, topic)

    def _broken_for(self, f: str, target: Target, topic: str | None) -> Passing:
        """Return a block that ends its own fault: another one may hold the same nodes."""
        undo, of_block = UNDONE_BY[f], object()
        return Passing(
            lambda: self._begin(self._break(f, of_nodes(target), topic, of_block), target),
            lambda _: self._begin(self._mend(undo, None, of_block)),
        )

    def inflict(
        self, fault: str, target: Target, *, topic: str | None = None, **parameters: int | str
    ) -> Act:
        """Begin a fault, by its name in `quorumlog chaos list`; `mend` ends it.

        A fault on links takes `client` as a target, too. Raises ValueError for an unknown fault or
        parameter, and for a fault that this cluster cannot have.
        """
        kind = fault_by_hand(fault, target, parameters)
        return self._begin(self._impose(kind, target, topic, object()), target)

    def isolate(self, target: Target, *, topic: str | None = None) -> Act:
        """Cut the nodes off from all other nodes, and from the clients."""
        return self.inflict("isolate_role", target, topic=topic)

    def partition(self, target: Target, *, topic: str | None = None) -> Act:
        """Cut the nodes off from all other nodes; clients still reach all nodes."""
        return self.inflict("partition_one", target, topic=topic)

    def delay(
        self,
        target: Target = ALL,
        *,
        min_ms: int = 20,
        spread_ms: int = 80,
        topic: str | None = None,
    ) -> Act:
        """Delay all bytes that the nodes send and receive."""
        times = {"min_us": min_ms * 1000, "spread_us": spread_ms * 1000}
        return self.inflict("delay", target, topic=topic, **times)

    def mend(self) -> Act:
        """End every inflicted fault: bytes held back arrive now, disks work, nodes start."""
        return self._begin(self._inflicted.end())

    def inflicted(
        self, fault: str, target: Target, *, topic: str | None = None, **parameters: int | str
    ) -> Passing:
        """Return a block during which a fault lasts."""
        kind, of_block = fault_by_hand(fault, target, parameters), object()
        return Passing(
            lambda: self._begin(self._impose(kind, target, topic, of_block), target),
            lambda _: self._begin(self._inflicted.end(of_block)),
        )

    def isolated(self, target: Target, *, topic: str | None = None) -> Passing:
        """Return a block during which the nodes are isolated."""
        return self.inflicted("isolate_role", target, topic=topic)

    def partitioned(self, target: Target, *, topic: str | None = None) -> Passing:
        """Return a block during which the nodes are cut off from all other nodes."""
        return self.inflicted("partition_one", target, topic=topic)

    def answer(
        self,
        api: str,
        error: str | int,
        *,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
        times: int | None = None,
        probability: float | None = None,
        on_call: int | None = None,
        after: str = "refused",
    ) -> Rule:
        """Answer requests of clients with an error, until `mend`, `heal` or the rule is spent.

        api, error: Kafka's names, or the number of an error. `times`: so many requests; `on_call`:
        only that matching request, counted from 1; `probability`: each with this probability;
        without these, each. `after`: `refused` requests do not reach a broker; `appended` ones are
        carried out before the error replaces the response. Raises ValueError.
        """
        limits: Limits = {
            "topic": topic, "partition": partition, "client_id": client_id, "times": times,
            "probability": probability, "on_call": on_call, "after": after,
        }  # fmt: skip
        return self._begin_rule(answer_of(api, error, **limits), object())

    def answering(self, api: str, error: str | int, **limits: Unpack[Limits]) -> RuleFor:
        """Return a block during which a rule of `answer` holds; it receives the rule."""
        fault, of_block = answer_of(api, error, **limits), object()
        return RuleFor(
            lambda: self._begin_rule(fault, of_block),
            lambda: self._begin(self._inflicted.end(of_block)),
        )

    def observe(
        self,
        api: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
    ) -> Rule:
        """Count requests of clients, until `mend` or `heal`: `.matches` of the result.

        Raises ValueError.
        """
        fault = observation_of(api, topic=topic, partition=partition, client_id=client_id)
        return self._begin_rule(fault, object())

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules of `answer` and `observe` as plain values, ended ones included. Blocks.

        Each has its number (`rule`), its parameters, `in_force`, `matches` and `answered`.
        """
        if self._loop is not None:
            self._blocking(self._count())
        return self._rules.rows()

    def holders(self, role: str, *, topic: str | None = None, in_line: bool = True) -> NodeIds:
        """Return the nodes that hold a role now, by the node with the newest metadata. Blocks.

        in_line: after all earlier verbs have ended; False: beside them.
        """
        if is_group(known_role(role)):
            raise ValueError(f"{role} is drawn by each verb: no node holds it")
        return self._blocking(self._holders(role, topic), in_line=in_line)

    def heal_now(self) -> None:
        """Heal, and block until the end, also in a coroutine."""
        self._blocking(self._healed())

    def _begin_rule(self, fault: OfOneTopic, owner: object) -> Rule:
        self._inflicted.require_supported(fault)  # a refused rule gets no number
        number = self._rules.add(fault)
        future = self._started(self._impose(fault, CLIENT, None, owner), CLIENT)
        return Rule(future, partial(self._see, future), number, lambda: self.rules()[number - 1])

    async def _count(self) -> NodeIds:
        await self._rules.refresh()
        return ()

    def _begin(self, work: Coroutine[Any, Any, NodeIds], target: Target | None = None) -> Act:
        future = self._started(work, target)
        return Act(future, partial(self._see, future))

    def _started(
        self, work: Coroutine[Any, Any, NodeIds], target: Target | None
    ) -> "Future[NodeIds]":
        loop = self._thread(work)
        self._check(work, target)
        future = loop.begin(self._after_others(work))
        if not in_coroutine():
            self._wait(future)
        else:
            self._begun.append(future)
        return future

    def _check(self, work: Coroutine[Any, Any, NodeIds], target: Target | None) -> None:
        """Raise for an invalid target at the line of the call, even if the verb is not awaited."""
        try:
            if isinstance(target, str):
                if target != CLIENT:
                    require_rack(known_role(target), self._back_end.racks)
            elif target is not None:
                self._named(target)
        except MISTAKES as error:
            work.close()
            raise error.with_traceback(None) from None

    def _see(self, future: "Future[NodeIds]") -> None:
        """Record that the test receives the result of a verb."""
        if future in self._begun:
            self._begun.remove(future)

    def _blocking(self, work: Coroutine[Any, Any, NodeIds], *, in_line: bool = True) -> NodeIds:
        loop = self._thread(work)
        return self._wait(loop.begin(self._after_others(work) if in_line else work))

    def _wait(self, future: "Future[NodeIds]") -> NodeIds:
        try:
            return future.result()
        except MISTAKES as error:
            raise error.with_traceback(None) from None
        except BaseException:
            future.cancel()
            raise

    def _thread(self, work: Coroutine[Any, Any, NodeIds]) -> LoopThread:
        if self._loop is None:
            work.close()
            raise RuntimeError("the test of this nemesis is over")
        return self._loop

    async def _after_others(self, work: Coroutine[Any, Any, NodeIds]) -> NodeIds:
        async with self._in_line:
            return await work

    async def _break(
        self, f: str, target: Target, topic: str | None, owner: object = None
    ) -> NodeIds:
        node_ids, role = await self._resolve(target, topic)
        require_running(node_ids, await self._back_end.running())
        self._number += 1
        self._record(f, names(node_ids), details_of(self._number, f, role))
        if f == "kill":  # a dead node is not paused
            self._undone("resume", node_ids, f"ended by #{self._number} kill")
        self._broken.add(UNDONE_BY[f], node_ids, self._number, owner)
        await self._back_end.perform(f, node_ids)
        return node_ids

    async def _mend(
        self, undo: str, target: int | Sequence[int] | None, owner: object = None
    ) -> NodeIds:
        """Undo the faults of verbs on nodes; None: on all nodes, of this owner if given.

        A node that another fault than the owner's holds stays as it is.
        """
        named = self._broken.held(undo, owner=owner) if target is None else self._named(target)
        if target is None and undo == "resume":  # a node that has died meanwhile is not paused
            running = await self._back_end.running()
            named = tuple(node_id for node_id in named if node_id in running)
        held = set[int]()
        if owner is not None:
            others = self._broken.held_by_others(undo, owner)
            held = {*others, *self._inflicted.holding(undo)}
        if node_ids := tuple(node_id for node_id in named if node_id not in held):
            await self._back_end.perform(undo, node_ids)
        self._undone(undo, named, owner=owner)
        if undo == "start":  # a new process is not paused
            self._undone("resume", node_ids, "ended by start")
        return node_ids

    def _undone(
        self, undo: str, node_ids: Sequence[int], remark: str = "", owner: object = None
    ) -> None:
        """Record the end of the faults of these nodes, in a row for each fault."""
        for number, some in self._broken.end(undo, node_ids, owner).items():
            self._record(undo, names(some), details_of(number, _BROKEN_BY[undo], remark))

    async def _impose(
        self, fault: StepFault, target: Target, topic: str | None, owner: object
    ) -> NodeIds:
        node_ids, role = await self._resolve(target, topic)
        scene = Scene(
            action_id=str(next(_ACTION_IDS)),
            victims=node_ids,
            running=await self._back_end.running(),
            all_nodes=self._back_end.node_ids,
            rng=self._rng,
            hits_clients=target == CLIENT,
        )
        self._inflicted.steps_of(fault, scene)  # before the fault gets a number
        self._number += 1
        await self._inflicted.begin(self._number, fault, scene, role, owner)
        return node_ids

    async def _healed(self, *, starts: bool = True) -> NodeIds:
        """Undo all faults, and start all dead nodes, also those not killed by this nemesis."""
        affected: set[int] = set()
        failed: list[Exception] = []
        steps: list[Callable[[], Awaitable[NodeIds]]] = [
            partial(self._inflicted.end, needs_no_majority=True),
            partial(self._mend, "resume", None),
        ]
        if starts:  # with dead nodes, the cluster may refuse to end the other faults
            steps += [self._start_dead, self._inflicted.end]
        for step in steps:
            try:
                affected.update(await step())
            except Exception as error:  # noqa: BLE001 - raised when all were tried
                failed.append(error)
        await self._back_end.restore()
        if failed:
            raise failed[0]
        if affected:
            self._record("heal", "", "every node is back")
        return tuple(sorted(affected))

    async def _start_dead(self) -> NodeIds:
        running = await self._back_end.running()
        dead = tuple(node_id for node_id in self._back_end.node_ids if node_id not in running)
        return await self._mend("start", dead) if dead else ()

    @property
    def _paused(self) -> Collection[int]:
        return {*self._broken.held("resume"), *self._inflicted.paused}

    def _named(self, target: int | Sequence[int]) -> NodeIds:
        named = (target,) if isinstance(target, int) else tuple(dict.fromkeys(target))
        for node_id in named:
            if isinstance(node_id, bool) or node_id not in self._back_end.node_ids:
                there_are = names(self._back_end.node_ids)
                raise NoSuchNode(f"there is no node {node_id}; this cluster has {there_are}")
        return named

    async def _resolve(self, target: Target, topic: str | None) -> tuple[NodeIds, str]:
        """Return the nodes of a target, and the role; wait while a role has no holder."""
        if not isinstance(target, str):
            return self._named(target), "named"
        if target == CLIENT:
            return (), target
        role = known_role(target)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _ROLE_TIMEOUT_S
        while True:
            running = await self._back_end.running()
            able = tuple(node_id for node_id in running if node_id not in self._paused)
            if role == ALL and able:
                return able, role
            if is_group(role) and able:
                return self._group(role, able)
            held = able if role == "any" else await self._holders(role, topic)
            if chosen := [node_id for node_id in held if node_id in able]:
                return (self._rng.choice(chosen),), role
            if topic is not None and loop.time() > deadline_s - _ROLE_TIMEOUT_S + _TOPIC_WAIT_S:
                require_topic(topic, await asyncio.to_thread(self._topics))
            if loop.time() > deadline_s or not able:
                raise NoSuchNode(
                    f"no node that runs is {role}: {names(running) or 'none'} running, "
                    f"{names(sorted(self._paused)) or 'none'} paused"
                )
            await asyncio.sleep(_ROLE_POLL_S)

    def _group(self, role: str, able: Sequence[int]) -> tuple[NodeIds, str]:
        count, racks = len(self._back_end.node_ids), self._back_end.racks
        node_ids, drawn = hit_group(role, count, racks, able, avoid=(), rng=self._rng)
        if not node_ids:
            raise NoSuchNode(f"no node of {role} runs: {names(able)} running and not paused")
        return node_ids, drawn

    async def _holders(self, role: str, topic: str | None) -> NodeIds:
        if role in {"any", ALL}:
            return tuple(await self._back_end.running())
        topic = topic or self._topic
        if topic is not None:
            return tuple(await self._back_end.holders(role, topic))
        names = await asyncio.to_thread(self._topics)
        held = [await self._back_end.holders(role, name) for name in names or [""]]
        return tuple(sorted({node_id for each in held for node_id in each}))
