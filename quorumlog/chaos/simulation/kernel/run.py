"""One run of a world: the faults of a schedule, then calm until the world has settled."""

from collections.abc import Collection
from typing import Final, Protocol

from quorumlog.chaos.faults import disks, machines, partitions, traffic
from quorumlog.chaos.faults.fault import ALL, MILLION
from quorumlog.chaos.faults.processes import Kill, Pause
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.kernel.timeline import Timeline, Trace

CALM_US_MAX: Final = 30 * MILLION
CALM_CHECK_US: Final = 200_000
_HEALTHY_DISK: Final = disks.SlowDisk(min_us=100, spread_us=2_000)
_CALM_FSYNC_US: Final = 500


class Environment:
    """The environment of the processes of a world: time, network, machines, trace."""

    def __init__(self, seed: int, node_ids: tuple[int, ...]) -> None:
        self.seed: Final = seed
        self.timeline: Final = Timeline()
        self.trace: Final = Trace()
        self.network: Final = Network(seed, node_ids)
        self.machines: Final = {
            node_id: Machine(node_id, seed, self.timeline, self.trace) for node_id in node_ids
        }
        self.is_calm = False
        self.slow_disk = _HEALTHY_DISK
        self.stall_us = dict.fromkeys(node_ids, 0)  # by so much the next fsync is slower
        self.steady_us = dict.fromkeys(node_ids, 0)  # by so much each fsync of a machine is slower
        self._fsync_rng: Final = seeded("fsync", seed).random

    def fsync_us(self, node_id: int) -> int:
        """Return how long the next fsync of a machine takes. Its disk may be slow in the calm."""
        if self.is_calm:
            return self.steady_us[node_id] + _CALM_FSYNC_US
        fraction, disk = self._fsync_rng(), self.slow_disk
        drawn_us = int(disk.min_us + fraction * fraction * fraction * disk.spread_us)
        stall_us, self.stall_us[node_id] = self.stall_us[node_id], 0
        return self.steady_us[node_id] + stall_us + drawn_us


class World(Protocol):
    """The system that a run simulates. Its processes are set on the machines beforehand."""

    @property
    def elections(self) -> int:
        """Return how many leaders were elected so far."""

    @property
    def environment(self) -> Environment:
        """Return the environment of the processes."""

    @property
    def left_down_max(self) -> int:
        """Return how many machines that are down at the end of the faults may stay so."""

    @property
    def calm_us_max(self) -> int:
        """Return the time after the faults within which the world must settle."""

    def begin(self) -> None:
        """Let the clients begin."""

    def members_of(self, role: str) -> list[int]:
        """Return the nodes that have a role of a schedule just now, perhaps none."""

    def inflict(self, action: Action, machine: Machine) -> None:
        """Perform a fault of the world itself on a running machine."""

    def has_settled(self) -> bool:
        """Return whether the world has settled. Called now and then in the calm."""

    def describe(self) -> str:
        """Return the state of the world for the report that it does not settle."""

    def committed(self) -> int:
        """Return how many records are committed."""


class Run:
    """One run. `run` raises Violation, or InvariantViolation from a core."""

    def __init__(self, schedule: Schedule, world: World) -> None:
        self._schedule: Final = schedule
        self._environment: Final = world.environment
        self._world: Final = world
        self._target_rng: Final = seeded("targets", schedule.seed)

    def run(self) -> None:
        """Run the schedule, then calm down."""
        timeline = self._environment.timeline
        for action in self._schedule.actions:
            timeline.push(action.t_us, self._inflict, action)
        for machine in self._environment.machines.values():
            timeline.push(0, machine.start)
        timeline.push(0, self._world.begin)
        timeline.push(self._schedule.duration_us, self._calm_down)
        timeline.run()

    # --- faults ---

    def _inflict(self, action: Action) -> None:
        environment, fault = self._environment, action.fault
        hit = self._targets(action)
        whom = ",".join(str(machine.node_id) for machine in hit)
        environment.trace.happened(environment.timeline.now_us, whom, f"fault {action.as_json()}")
        later = environment.timeline.push
        match fault:
            case traffic.Loss() | traffic.Duplication() | traffic.Delay() | traffic.Reorder():
                environment.network.begin(fault)
                later(action.duration_us, environment.network.end, fault)
            case disks.SlowDisk():
                environment.slow_disk = fault
                later(action.duration_us, setattr, environment, "slow_disk", _HEALTHY_DISK)
            case partitions.Partition() | partitions.OneWayCut():
                direction = fault.direction if isinstance(fault, partitions.OneWayCut) else None
                inside = [machine.node_id for machine in hit]
                links = environment.network.links_between(inside, direction)
                environment.network.cut(links)
                later(action.duration_us, environment.network.mend, links)
            case machines.ClockDrift(rate_ppm=rate_ppm):
                for machine in hit:
                    machine.set_clock_rate(rate_ppm)
                    later(action.duration_us, machine.set_clock_rate, MILLION)
            case _:
                for machine in hit:
                    if machine.is_up:
                        self._hit(machine, action)

    def _hit(self, machine: Machine, action: Action) -> None:
        match action.fault:
            case Kill():
                machine.stop(action.duration_us, loses_power=False)
            case machines.PowerLoss():
                machine.stop(action.duration_us, loses_power=True)
            case disks.FsyncError():
                machine.fail_next_fsync()
            case disks.DiskStall(us=us):
                self._environment.stall_us[machine.node_id] = us
            case machines.InterruptedWrite() as fault:
                machine.interrupt_write(fault)
            case Pause():
                machine.pause(action.duration_us)
            case _:
                self._world.inflict(action, machine)

    def _targets(self, action: Action) -> list[Machine]:
        known = self._environment.machines
        chosen: Collection[int]
        match action.target:
            case str() as role if role == ALL:
                chosen = known
            case "any":
                running = [node_id for node_id, one in known.items() if one.is_up]
                chosen = [self._target_rng.choice(running)] if running else []
            case str() as role:
                chosen = self._world.members_of(role)
            case node_ids:
                chosen = node_ids
        return [known[node_id] for node_id in chosen if node_id in known]

    # --- calm ---

    def _calm_down(self) -> None:
        """End all faults. A few machines that are down may stay down for good."""
        environment = self._environment
        environment.is_calm = environment.network.is_calm = True
        left_down = 0
        for machine in environment.machines.values():
            machine.disk.on_operation = None
            if not machine.is_up and left_down < self._world.left_down_max:
                machine.is_left_down = True
                left_down += 1
            elif machine.is_up and machine.is_paused:
                machine.resume()
        for machine in environment.machines.values():
            machine.start()
        environment.timeline.push(CALM_CHECK_US, self._until_settled)

    def _until_settled(self) -> None:
        timeline = self._environment.timeline
        if self._world.has_settled():
            timeline.stop()
            return
        calm_us_max = self._world.calm_us_max
        late = timeline.now_us > self._schedule.duration_us + calm_us_max
        seconds = calm_us_max // MILLION
        check(not late, f"liveness: {self._world.describe()} after {seconds} calm seconds")
        timeline.push(CALM_CHECK_US, self._until_settled)
