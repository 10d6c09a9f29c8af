"""One heap, one clock, one seed: nodes, network, clients and faults of one run.

Time is in integer microseconds. Nothing here depends on the order of a set, an address or a hash.
After the faults comes calm: messages arrive, machines start, and all logs must become equal.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.trace import Trace
from quorumlog.chaos.simulation.worlds.quorum.faults import MILLION, Fault, Schedule
from quorumlog.chaos.simulation.worlds.quorum.messenger import Messenger
from quorumlog.chaos.simulation.worlds.quorum.node import SimNode
from quorumlog.chaos.simulation.worlds.quorum.oracle import Oracle, check
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import BrokerId, Offset

CALM_US_MAX: Final = 30 * MILLION  # until a leader leads and all logs are equal
CALM_CHECK_US: Final = 200_000


class Simulator:
    """One run. `run` raises Violation, or InvariantViolation from a node."""

    def __init__(self, seed: int, schedule: Schedule, quorum_class: type[Quorum]) -> None:
        self.parameters: Final[dict[str, Any]] = schedule["parameters"]
        self._voters: Final = tuple(range(1, schedule["nodes"] + 1))
        machines = schedule["nodes"] + self.parameters["observers"]
        self.node_ids: Final = tuple(range(1, machines + 1))
        self.oracle: Final = Oracle(self.node_ids, self._voters)
        self.network: Final = Network(seed, self.node_ids, self.parameters)
        self.events = self.elections = self.now_us = 0
        self._schedule = schedule
        self._end_us = schedule["duration_ms"] * 1000
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = self._proposed = 0
        self._is_calm = self._has_proposed_in_calm = False
        self._left_down: list[int] = []
        self._disk_rng = seeded("fsync", seed).random
        self._client_rng = seeded("clients", seed)
        self.trace: Final = Trace()
        settings = QuorumSettings(
            controller_quorum_dead_process_notice_enable=bool(self.parameters["is_death_noticed"])
        )
        log_settings = LogSettings(segment_bytes=self.parameters["segment_bytes"])
        self.nodes: Final = {
            node_id: SimNode(
                node_id,
                self._voters,
                quorum_class=quorum_class,
                settings=settings,
                log_settings=log_settings,
                seed=seed,
                oracle=self.oracle,
            )
            for node_id in self.node_ids
        }

        self._messenger: Final = Messenger(
            self.nodes, self.network, self.oracle, push=self._push, feed=self._feed
        )

    def run(self) -> None:
        """Run the schedule, then calm down. Raises Violation, InvariantViolation."""
        for node_id in self.node_ids:
            self._push(0, self._boot, node_id)
        self._push(0, self._propose)
        for fault in self._schedule["faults"]:
            self._push(fault["at_ms"] * 1000, self._begin_fault, fault)
        self._push(self._end_us, self._calm_down)
        heap = self._heap
        while heap:
            self.now_us, _, action, arguments = heapq.heappop(heap)
            self.events += 1
            action(*arguments)

    def _push(self, after_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_us + after_us, self._pushed, action, arguments))

    # --- a process ---

    def _boot(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.is_up or node_id in self._left_down:
            return
        self.trace.happened(self.now_us, str(node_id), "starts")
        try:
            started = node.boot()
        except StorageError:
            self._stop_on_disk_error(node)
            return
        self._feed(node, started)

    def _local_ms(self, node: SimNode) -> int:
        return self.now_us * self._clock_ppm(node) // (MILLION * 1000)

    def _clock_ppm(self, node: SimNode) -> int:
        ppm: int = self.parameters["clock_ppm"][node.node_id - 1]
        return ppm

    def _feed(self, node: SimNode, event: events.Event) -> None:
        """Let a process take in a fact: now, or when it runs again."""
        if node.is_paused or node.is_writing or node.inbox:
            node.inbox.append(event)
            return
        self._step(node, event)

    def _drain(self, node: SimNode) -> None:
        while node.inbox and node.is_up and not (node.is_paused or node.is_writing):
            self._step(node, node.inbox.popleft())

    def _step(self, node: SimNode, event: events.Event) -> None:
        quorum = node.quorum
        # Before the step: it may commit, and then resign.
        node.leads_epoch = quorum.leader_epoch if quorum.is_leader else None
        try:
            orders = quorum.step(self._local_ms(node), event)
        finally:  # the step that breaks a rule is the one to see
            self.trace.stepped(self.now_us, node.node_id, event, quorum)
        self._perform(node, node.incarnation, orders, 0)

    def _perform(
        self, node: SimNode, incarnation: int, orders: list[effects.Effect], start: int
    ) -> None:
        """Perform effects in order; a crash may come while the election state is written."""
        if node.incarnation != incarnation or not node.is_up:
            return
        node.is_writing = False
        for index in range(start, len(orders)):
            effect = orders[index]
            if isinstance(effect, effects.PersistElection):
                node.is_writing = True
                self._push(
                    self._fsync_us(), self._persisted, node, incarnation, effect, orders, index + 1
                )
                return
            try:
                self._perform_one(node, effect)
            except StorageError:
                self._stop_on_disk_error(node)
                return
        self._schedule_tick(node)
        if start:
            self._drain(node)

    def _persisted(
        self,
        node: SimNode,
        incarnation: int,
        effect: effects.PersistElection,
        orders: list[effects.Effect],
        start: int,
    ) -> None:
        if node.incarnation == incarnation and node.is_up:
            try:
                node.write_election(effect)
            except StorageError:
                self._stop_on_disk_error(node)
                return
            if effect.voted_id >= 0:
                self.oracle.saw_vote(node.node_id, effect.leader_epoch, effect.voted_id)
            self._perform(node, incarnation, orders, start)

    def _fsync_us(self) -> int:
        if self._is_calm:
            return 500
        fraction = self._disk_rng()
        spread_us: int = self.parameters["fsync_spread_us"]
        return int(self.parameters["fsync_min_us"] + fraction * fraction * fraction * spread_us)

    def _perform_one(self, node: SimNode, effect: effects.Effect) -> None:
        match effect:
            case effects.SendRequest():
                self._messenger.send_request(node, effect)
            case effects.SendResponse(request_id=request_id, response=response):
                self._messenger.send_response(node, request_id, response, b"")
            case effects.AnswerFetch():
                self._messenger.answer_fetch(node, effect)
            case effects.FlushLog(log_end_offset=end):
                self._push(self._fsync_us(), self._flushed, node, node.incarnation, end)
            case effects.AppendFetched() | effects.TruncateLog() | effects.AppendLeaderChange():
                node.write_log(effect, now_ms=self._local_ms(node))
            case effects.PersistElection():
                raise AssertionError("_perform does it")
            case _:
                self._announce(node, effect)

    def _announce(
        self,
        node: SimNode,
        effect: effects.AdvanceHighWatermark
        | effects.BecomeLeader
        | effects.ResignLeadership
        | effects.FollowLeader,
    ) -> None:
        match effect:
            case effects.AdvanceHighWatermark(high_watermark=high_watermark):
                self._advanced(node, high_watermark)
            case effects.BecomeLeader(leader_epoch=leader_epoch):
                self.elections += 1
                self.oracle.became_leader(node.node_id, leader_epoch)
            case effects.ResignLeadership():
                node.proposals.clear()
            case effects.FollowLeader(leader_id=leader_id):
                self._notice_if_dead(node, leader_id)

    def _schedule_tick(self, node: SimNode) -> None:
        deadline_ms = node.quorum.next_deadline_ms()
        if deadline_ms is None:
            return
        ppm = self._clock_ppm(node)
        at_us = max(-(-deadline_ms * 1000 * MILLION // ppm), self.now_us)
        if not node.tick_at_us or at_us < node.tick_at_us:
            node.tick_at_us = at_us
            self._push(at_us - self.now_us, self._tick, node, node.incarnation, at_us)

    def _tick(self, node: SimNode, incarnation: int, at_us: int) -> None:
        if node.incarnation == incarnation and node.is_up and node.tick_at_us == at_us:
            node.tick_at_us = 0
            deadline_ms = node.quorum.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self._local_ms(node):
                self._feed(node, events.Ticked())
            else:
                self._schedule_tick(node)

    def _flushed(self, node: SimNode, incarnation: int, end: Offset) -> None:
        if node.incarnation != incarnation or not node.is_up:
            return
        try:
            node.flush()
        except StorageError:
            self._stop_on_disk_error(node)
            return
        self._feed(node, events.LogFlushed(flushed_offset=end))

    def _stop_on_disk_error(self, node: SimNode) -> None:
        """End a process, and start its machine anew: what is in the page cache is a lie now."""
        self._stop(node, MILLION, loses_power=True)

    def _stop(self, node: SimNode, duration_us: int, *, loses_power: bool) -> None:
        """End a process. Its system tells its peers, unless it has lost its power."""
        if not node.is_up:
            return
        node.stop(loses_power=loses_power)
        self._push(duration_us, self._boot, node.node_id)
        if loses_power:
            return
        for source, incarnation, request_id, _ in node.asked.values():
            self._messenger.fail_request(node.node_id, source, incarnation, request_id)
        for peer in self.nodes.values():
            if peer.is_up and peer.quorum.leader_id == node.node_id:
                self._notice_if_dead(peer, node.node_id)

    def _notice_if_dead(self, node: SimNode, leader_id: int) -> None:
        """Connect; a machine that runs, but not the process, refuses at once."""
        if leader_id >= 0 and not self.nodes[leader_id].is_up:
            self._push(1_000, self._connected, node, node.incarnation, leader_id)

    def _connected(self, node: SimNode, incarnation: int, leader_id: int) -> None:
        is_meant = node.incarnation == incarnation and node.is_up
        is_reachable = self.network.is_connected(node.node_id, leader_id)
        if is_meant and is_reachable and not self.nodes[leader_id].is_up:
            self._feed(node, events.PeerProcessDied(node_id=BrokerId(leader_id)))

    # --- clients ---

    def _propose(self) -> None:
        """Let a client write to every node that thinks it leads."""
        for node in self.nodes.values():
            if not node.is_up or node.is_paused or node.is_writing or not node.quorum.is_leader:
                continue
            count = self._client_rng.randrange(1, self.parameters["batch_records_max"] + 1)
            values = [b"value %d" % (self._proposed + index) for index in range(count)]
            self._proposed += count
            base = node.log.log_end_offset
            try:
                entries = node.append_own(values, is_control=False, now_ms=self._local_ms(node))
            except StorageError:
                self._stop_on_disk_error(node)
                continue
            end = node.log.log_end_offset
            node.proposals[end] = (base, entries)
            appended = events.RecordsAppended(
                leader_epoch=node.quorum.leader_epoch, log_end_offset=end
            )
            self._step(node, appended)
        if not self._is_calm:
            self._push(self.parameters["propose_every_us"], self._propose)

    def _advanced(self, node: SimNode, high_watermark: int) -> None:
        self.oracle.advanced(node.node_id, high_watermark, leads_epoch=node.leads_epoch)
        for end in [end for end in node.proposals if end <= high_watermark]:
            base, entries = node.proposals.pop(end)
            for offset, entry in enumerate(entries, base):
                self.oracle.acknowledge(offset, entry)

    # --- faults ---

    def _targets(self, target: list[int] | str) -> list[SimNode]:
        if target != "leader":
            return [self.nodes[int(node_id)] for node_id in target if int(node_id) in self.nodes]
        leaders = [node for node in self.nodes.values() if node.is_up and node.quorum.is_leader]
        return [max(leaders, key=lambda node: node.quorum.leader_epoch)] if leaders else []

    def _begin_fault(self, fault: Fault) -> None:
        nodes = self._targets(fault["target"])
        whom = ",".join(str(node.node_id) for node in nodes)
        self.trace.happened(self.now_us, whom, f"fault {fault}")
        duration_us = fault.get("duration_ms", 0) * 1000
        if fault["fault"] in {"partition", "one_way_cut"}:
            inside = [node.node_id for node in nodes]
            links = self.network.links_between(inside, fault.get("direction"))
            self.network.cut(links)
            self._push(duration_us, self.network.mend, links)
            return
        for node in nodes:
            if node.is_up:
                self._hit(node, fault, duration_us)

    def _hit(self, node: SimNode, fault: Fault, duration_us: int) -> None:
        match fault["fault"]:
            case "kill":
                self._stop(node, duration_us, loses_power=False)
            case "power_loss":
                self._stop(node, duration_us, loses_power=True)
            case "fsync_error":
                node.fail_next_fsync()
            case "interrupted_write":
                node.lose_power_within(fault["writes"], file=fault["file"], times=fault["times"])
            case "pause":
                node.is_paused = True
                self._push(duration_us, self._resume, node, node.incarnation)
            case "resign":
                self._feed(node, events.ResignRequested())
            case "false_notice":
                leader_id = node.quorum.leader_id
                self._feed(node, events.PeerProcessDied(node_id=leader_id))
            case _:
                raise ValueError(f"there is no fault {fault['fault']!r}")

    def _resume(self, node: SimNode, incarnation: int) -> None:
        if node.incarnation == incarnation and node.is_up:
            node.is_paused = False
            self._drain(node)

    # --- calm ---

    def _calm_down(self) -> None:
        """End all faults, but perhaps leave a minority of the machines down for good."""
        self._is_calm = self.network.is_calm = True
        left_down = (len(self._voters) - 1) // 2 * self.parameters["is_minority_left_down"]
        for node in self.nodes.values():
            node.disk.on_operation = None
            if len(self._left_down) < left_down and not node.is_up:
                self._left_down.append(node.node_id)
            elif node.is_up and node.is_paused:
                self._resume(node, node.incarnation)
        for node_id in self.node_ids:
            self._boot(node_id)
        self._push(CALM_CHECK_US, self._until_equal)

    def _until_equal(self) -> None:
        """Stop when one leads and has all committed everywhere; write something now and then."""
        nodes = [node for node in self.nodes.values() if node.node_id not in self._left_down]
        quorums = [node.quorum for node in nodes]
        states = {
            (quorum.leader_id, quorum.leader_epoch, quorum.log_end_offset, quorum.high_watermark)
            for quorum in quorums
        }
        leads = any(quorum.is_leader for quorum in quorums)
        end = quorums[0].log_end_offset
        is_equal = len(states) == 1 and leads and quorums[0].high_watermark == end
        if is_equal and self._has_proposed_in_calm:
            for node in nodes:
                self.oracle.finish(node.node_id, node.read_entries())
            self._heap.clear()
            return
        late = self.now_us > self._end_us + CALM_US_MAX
        check(not late, f"liveness: {sorted(states)} after {CALM_US_MAX // MILLION} calm seconds")
        if leads and not self._has_proposed_in_calm:
            self._propose()
            self._has_proposed_in_calm = True
        self._push(CALM_CHECK_US, self._until_equal)
