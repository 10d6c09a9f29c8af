"""A quorum moved by hand: one command per line, the events as text. For tests and for learning.

Real cores, logs in outline, and a network that delivers on command. Commands:

    start 3 [observers 1]    voters 1, 2, 3 (and observer 4) with empty disks
    at 1500                  let it be 1500 ms; every node with an expired deadline ticks
    deliver [1->2]           deliver all messages until there are none; or those now on one link
    lose 1->2                lose the messages that are now on one link
    isolate 1 | join 1       lose all that node 1 sends and is sent, from now on | no more
    append 1 x y             node 1, the leader, appends the records x and y
    hold 1 | flush 1         let the fsyncs of node 1 wait | let them end, now and from now on
    kill 1 | power-off 1     end a process | and lose what was not flushed
    boot 1                   start it again
    died 1 at 2              node 2 learns that the process of node 1 died
    resign 1                 let node 1 resign
    logs                     show all logs: epoch and record of each offset, | where durable ends
    limit 1                  let a fetch answer carry at most one record from now on
    quietly COMMAND          run it, and show nothing

Election timeouts are fixed: 1000 ms for node 1, 1200 for node 2, and so on.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorumlog.chaos.simulation.worlds.quorum.observed import render_request, render_value
from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import NOBODY
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

Log = list[tuple[int, str]]  # epoch and record, by offset


@dataclass(slots=True, kw_only=True)
class Machine:
    """A node: its disk, and its process while that runs."""

    quorum: Quorum
    is_up: bool = True
    log: Log = field(default_factory=list)
    durable_end: int = 0
    election: tuple[int, int, int] = (0, NOBODY, NOBODY)
    holds_flushes: bool = False
    flush_end: int | None = None
    callers: dict[int, tuple[int, int]] = field(default_factory=dict)
    fetched: dict[int, Log] = field(default_factory=dict)


Message = tuple[str, int, Any, Log]  # "ask" or "answer", request id, content, records


class ScriptedCluster:
    """Run commands; see the module."""

    def __init__(self, quorum_class: type[Quorum] = Quorum) -> None:
        self.machines: dict[int, Machine] = {}
        self.now_ms = 0
        self._voters: tuple[BrokerId, ...] = ()
        self._quorum_class = quorum_class
        self._links: dict[tuple[int, int], deque[Message]] = {}
        self._isolated: set[int] = set()
        self._last_token = 0
        self._records_max: int | None = None
        self._lines: list[str] = []

    def run(self, command: str) -> str:
        """Run one command; return its events. Raises ValueError for an unknown command."""
        name, *words = command.split()
        if name == "quietly":
            self.run(" ".join(words))
            return ""
        commands: dict[str, Callable[..., None]] = {
            "start": self._start, "at": self._at, "deliver": self._deliver, "lose": self._lose,
            "isolate": self._isolate, "join": self._join, "append": self._append,
            "hold": self._hold, "flush": self._flush, "kill": self._kill, "boot": self._boot,
            "power-off": self._power_off, "died": self._died, "resign": self._resign,
            "logs": self._show_logs, "limit": self._limit,
        }  # fmt: skip
        if name not in commands:
            raise ValueError(f"there is no command {name!r}")
        self._lines = []
        commands[name](*words)
        return "\n".join(self._lines)

    def _say(self, line: str) -> None:
        self._lines.append(line)

    # --- commands ---

    def _start(self, voters: str, _word: str = "observers", observers: str = "0") -> None:
        self._voters = tuple(BrokerId(number) for number in range(1, int(voters) + 1))
        for number in range(1, int(voters) + int(observers) + 1):
            self.machines[number] = Machine(quorum=self._new_quorum(number))
            self._boot(str(number))

    def _new_quorum(self, number: int) -> Quorum:
        return self._quorum_class(
            node_id=BrokerId(number),
            voters=self._voters,
            settings=QuorumSettings(),
            random_fraction=lambda: (number - 1) / 5,
        )

    def _at(self, now_ms: str) -> None:
        self.now_ms = int(now_ms)
        for number, machine in self.machines.items():
            deadline_ms = machine.quorum.next_deadline_ms() if machine.is_up else None
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                self._step(number, events.Ticked())
                left_ms = machine.quorum.next_deadline_ms()
                is_done = left_ms is None or left_ms > self.now_ms
                require(is_done, f"node {number} does in a tick all that is due")

    def _deliver(self, link: str | None = None) -> None:
        if link is not None:
            messages = self._link(link)
            for _ in range(len(messages)):
                self._arrive(*self._ends(link), messages.popleft())
            return
        while busy := [ends for ends, messages in sorted(self._links.items()) if messages]:
            for ends in busy:
                self._arrive(*ends, self._links[ends].popleft())

    def _lose(self, link: str) -> None:
        self._link(link).clear()

    def _isolate(self, number: str) -> None:
        self._isolated.add(int(number))

    def _join(self, number: str) -> None:
        self._isolated.discard(int(number))

    def _append(self, number: str, *records: str) -> None:
        machine = self.machines[int(number)]
        epoch = machine.quorum.state.leader_epoch
        machine.log += [(epoch, record) for record in records]
        appended = events.RecordsAppended(
            leader_epoch=epoch, log_end_offset=Offset(len(machine.log))
        )
        self._step(int(number), appended)

    def _hold(self, number: str) -> None:
        self.machines[int(number)].holds_flushes = True

    def _flush(self, number: str) -> None:
        self.machines[int(number)].holds_flushes = False
        self._end_flush(int(number))

    def _kill(self, number: str) -> None:
        machine = self.machines[int(number)]
        machine.is_up = False
        for source, request_id in machine.callers.values():
            self._fail(source, request_id)

    def _power_off(self, number: str) -> None:
        machine = self.machines[int(number)]
        machine.is_up = False
        del machine.log[machine.durable_end :]

    def _boot(self, number: str) -> None:
        machine = self.machines[int(number)]
        machine.is_up, machine.holds_flushes, machine.flush_end = True, False, None
        machine.callers.clear()
        for ends, messages in self._links.items():
            if int(number) in ends:
                messages.clear()  # the connections are new
        machine.quorum = self._new_quorum(int(number))
        machine.durable_end = len(machine.log)  # opening a log makes it durable
        epoch, leader_id, voted_id = machine.election
        started = events.Started(
            leader_epoch=Epoch(epoch),
            leader_id=BrokerId(leader_id),
            voted_id=BrokerId(voted_id),
            log_end_offset=Offset(len(machine.log)),
            flushed_offset=Offset(len(machine.log)),
            epoch_starts=_epoch_starts(machine.log, 0),
        )
        self._step(int(number), started)

    def _died(self, dead: str, _word: str, number: str) -> None:
        self._step(int(number), events.PeerProcessDied(node_id=BrokerId(int(dead))))

    def _resign(self, number: str) -> None:
        self._step(int(number), events.ResignRequested())

    def _limit(self, records: str) -> None:
        self._records_max = int(records)

    def _show_logs(self) -> None:
        for number, machine in self.machines.items():
            shown = [f"{epoch}:{record}" for epoch, record in machine.log]
            if machine.durable_end < len(shown):
                shown.insert(machine.durable_end, "|")
            self._say(f"{number} {' '.join(shown)}".rstrip())

    # --- a node ---

    def _step(self, number: int, event: events.Event) -> None:
        machine = self.machines[number]
        quorum = machine.quorum
        before = type(quorum.state.role), quorum.state.log.high_watermark
        for effect in quorum.step(self.now_ms, event):
            self._say(f"{number}: {_rendered(effect)}")
            self._perform(number, machine, effect)
        if before != (type(quorum.state.role), quorum.state.log.high_watermark):
            role, log = type(quorum.state.role).__name__, quorum.state.log
            self._say(
                f"{number} = {role} epoch={quorum.state.leader_epoch}"
                f" log_end_offset={log.end_offset} high_watermark={log.high_watermark}"
            )
        if machine.flush_end is not None and not machine.holds_flushes:
            self._end_flush(number)

    def _end_flush(self, number: int) -> None:
        machine = self.machines[number]
        if machine.flush_end is not None:
            end, machine.flush_end = machine.flush_end, None
            machine.durable_end = max(machine.durable_end, end)
            self._step(number, events.LogFlushed(flushed_offset=Offset(end)))

    def _perform(self, number: int, machine: Machine, effect: effects.Effect) -> None:
        match effect:
            case effects.PersistElection(leader_epoch=epoch, leader_id=leader, voted_id=voted):
                machine.election = epoch, leader, voted
            case effects.AppendLeaderChange(leader_epoch=epoch):
                machine.log.append((epoch, "LeaderChange"))
            case effects.AppendFetched(request_id=request_id):
                machine.log += machine.fetched.pop(request_id)
            case effects.TruncateLog(end_offset=end_offset):
                del machine.log[end_offset:]
                machine.durable_end = min(machine.durable_end, end_offset)
            case effects.FlushLog(log_end_offset=end_offset):
                machine.flush_end = end_offset
            case effects.SendRequest(request_id=request_id, destination=target, request=request):
                self._post(number, target, ("ask", request_id, request, []))
            case effects.SendResponse(request_id=token, response=response):
                source, request_id = machine.callers.pop(token)
                self._post(number, source, ("answer", request_id, response, []))
            case effects.AnswerFetch(records_from=start, records_to=end) as answer:
                source, request_id = machine.callers.pop(answer.request_id)
                records = machine.log[start:end][: self._records_max]
                self._post(number, source, ("answer", request_id, answer.response, records))
            case _:
                pass  # an event of the controller

    # --- the network ---

    @staticmethod
    def _ends(link: str) -> tuple[int, int]:
        source, target = link.split("->")
        return int(source), int(target)

    def _link(self, link: str) -> deque[Message]:
        return self._links.setdefault(self._ends(link), deque())

    def _post(self, source: int, target: int, message: Message) -> None:
        if not {source, target} & self._isolated:
            self._links.setdefault((source, target), deque()).append(message)

    def _fail(self, number: int, request_id: int) -> None:
        if self.machines[number].is_up and number not in self._isolated:
            self._step(number, events.RequestFailed(request_id=request_id))

    def _arrive(self, source: int, target: int, message: Message) -> None:
        kind, request_id, content, records = message
        machine = self.machines[target]
        if not machine.is_up:
            if kind == "ask":
                self._fail(source, request_id)
        elif kind == "ask":
            self._last_token += 1
            machine.callers[self._last_token] = source, request_id
            received = events.RequestReceived(request_id=self._last_token, request=content)
            self._step(target, received)
        else:
            machine.fetched = {request_id: records}
            answered = events.ResponseReceived(
                request_id=request_id,
                source=BrokerId(source),
                response=content,
                records=_described(records, len(machine.log)),
            )
            self._step(target, answered)


def _rendered(effect: effects.Effect) -> str:
    """Return the effect of a node as text."""
    match effect:
        case effects.SendRequest(destination=target, request=request):
            return f"-> {target} {render_request(request)}"
        case effects.SendResponse(response=response):
            return render_value(response)
        case effects.AnswerFetch(response=response, records_from=start, records_to=end):
            return f"{render_value(response)} records=[{start},{end})"
        case _:
            return render_value(effect)


def _described(records: Log, base_offset: int) -> events.FetchedRecords | None:
    if not records:
        return None
    return events.FetchedRecords(
        base_offset=Offset(base_offset),
        end_offset=Offset(base_offset + len(records)),
        epoch_starts=_epoch_starts(records, base_offset),
        voter_sets=(),
    )


def _epoch_starts(log: Log, base_offset: int) -> tuple[tuple[Epoch, Offset], ...]:
    starts: list[tuple[Epoch, Offset]] = []
    for offset, (epoch, _) in enumerate(log, base_offset):
        if not starts or starts[-1][0] != epoch:
            starts.append((Epoch(epoch), Offset(offset)))
    return tuple(starts)
