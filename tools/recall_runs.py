"""One attempt to find a planted bug: in a simulated world, or in whole nodes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from quorumlog.broker.settings import RACK_SELECTOR
from quorumlog.chaos.mutants import registry
from quorumlog.chaos.mutants.administration import CHURN
from quorumlog.chaos.mutants.consumer_groups import CONSUMER_GROUPS, MIXED_GROUPS
from quorumlog.chaos.mutants.directories import DIRECTORIES, LOSSES
from quorumlog.chaos.mutants.groups import GROUPS, TRANSACTIONAL_OFFSETS
from quorumlog.chaos.mutants.mirror import MIRRORS
from quorumlog.chaos.mutants.quorum import FULL_DISKS
from quorumlog.chaos.mutants.registry import NodeMutant
from quorumlog.chaos.mutants.replication import FLUSHES, PRODUCERS
from quorumlog.chaos.mutants.requests import REQUESTS
from quorumlog.chaos.mutants.security import SECURITY
from quorumlog.chaos.mutants.transaction_logs import OUTCOMES, TRANSACTION_LOGS
from quorumlog.chaos.mutants.transactions import COORDINATORS
from quorumlog.chaos.mutants.voters import VOTER_RESPONSES, VOTERS
from quorumlog.chaos.node_simulation.forked import RunFailed
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.chaos.simulation import WORLDS, simulate
from quorumlog.cluster import ClusterShape

MUTANTS: Final[Mapping[str, NodeMutant]] = registry.MUTANTS
"""All mutants, for each module of the table."""
NODES: Final = "nodes"
TEST_CPU_S: Final = 40
WORLD_SEEDS: Final = 100
NODES_SEEDS: Final = 8
"""The budgets of a cell: CPU seconds of tests, seeds of each world, and of whole nodes."""
_WORLD_MS: Final = 10_000
_LONGER_MS: Final = {"adds_before_it_may_vote": 60_000}
"""Durations of a world for bugs that need longer: disks are lost once each log has the voters."""
NODES_MS: Final = 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOptions:
    """Options of a seed of whole nodes, if the defaults cannot show the bug."""

    workload: str = "append_read"
    faults: tuple[str, ...] | None = None
    config: tuple[str, ...] = ()
    shape: ClusterShape = field(default_factory=ClusterShape)

    def arguments(self) -> list[str]:
        """Return the options as arguments of the command."""
        arguments = [] if self.workload == "append_read" else ["--workload", self.workload]
        arguments += [] if self.faults is None else ["--faults", ",".join(self.faults)]
        for setting in self.config:
            arguments += ["--config", setting]
        return [*arguments, *self.shape.options()]


_RACKS: Final = f"replica.selector.class={RACK_SELECTOR}"
_SMALL_SEGMENTS: Final = ("log.segment.bytes=2000",)
_CLEANED: Final = (
    "log.cleaner.backoff.ms=200",
    "log.segment.bytes=1500",
    "log.cleaner.min.cleanable.ratio=0.01",
)
_THROTTLED: Final = NodesOptions(
    faults=("throttle", "kill"), config=("replica.fetch.max.bytes=200",)
)
_MOVED: Final = NodesOptions(
    faults=("reassign", "kill"), shape=ClusterShape(controllers=3, brokers=5)
)
_CHURNED: Final = NodesOptions(faults=("admin_churn", "grow", "kill", "kill_all"))
_DIRECTORIES: Final = (
    "log.dirs=/data,/disk2",
    "replica.alter.log.dirs.io.max.bytes.per.second=2000",
)
_COPIED: Final = NodesOptions(faults=("alter_log_dirs", "kill"), config=_DIRECTORIES)
_FLUSHED: Final = NodesOptions(
    faults=("power_loss_all", "kill", "slow_fsync"), config=("log.flush.acks=true",)
)
_LOSSES: Final = NodesOptions(
    faults=("losses",), config=("min.insync.replicas=2", "log.flush.interval.messages=20")
)
_SMALL_SNAPSHOTS: Final = (
    "metadata.log.max.record.bytes.between.snapshots=300",
    "metadata.log.segment.bytes=400",
    "metadata.max.retention.bytes=500",
)
_VOTERS: Final = NodesOptions(faults=("change_voters", "replace_voter", "kill", "pause"))
NODES_OPTIONS: Final[Mapping[str, NodesOptions]] = {
    "clean_shutdown_is_remembered": NodesOptions(faults=("restart", "power_loss")),
    "snapshots_outlive_records": NodesOptions(
        workload="idempotent_send",
        faults=("pause_kill", "kill", "restart", "partition_one"),
        config=_SMALL_SEGMENTS,
    ),
    "followers_serve_their_log_end": NodesOptions(config=(_RACKS,)),
    "followers_never_learn_of_commits": NodesOptions(config=(_RACKS,)),
    "lets_the_dead_leave_first": NodesOptions(
        faults=("power_loss", "refuse", "kill"), shape=ClusterShape(controllers=3, brokers=3)
    ),
    "skips_where_segments_begin": NodesOptions(config=_SMALL_SEGMENTS),
    "new_directories_are_not_named": _FLUSHED,
    **dict.fromkeys(FLUSHES, _FLUSHED),
    **dict.fromkeys(PRODUCERS, NodesOptions(workload="idempotent_send", faults=("ack_kill",))),
    **dict.fromkeys(LOSSES, _LOSSES),
    "fails_without_loss": replace(_LOSSES, faults=("fsync_loss", "kill_all")),
    **dict.fromkeys(FULL_DISKS, NodesOptions(faults=("disk_full", "kill"))),
    **dict.fromkeys(CHURN, _CHURNED),
    "completes_at_once": _MOVED,
    "keeps_the_removed_in_the_isr": NodesOptions(faults=("reassign", "kill")),
    **dict.fromkeys(DIRECTORIES, _COPIED),
    "forgets_truncations": NodesOptions(
        faults=("alter_log_dirs", "kill", "pause_kill", "partition_one"), config=_DIRECTORIES
    ),
    "takes_the_copy_for_the_log": NodesOptions(
        faults=("alter_log_dirs", "kill_all", "kill"), config=_DIRECTORIES
    ),
    "copies_are_not_flushed": NodesOptions(
        faults=("alter_log_dirs", "power_loss_all", "kill"),
        config=("log.dirs=/data,/disk2", "log.flush.acks=true", *_SMALL_SEGMENTS),
    ),
    **dict.fromkeys(
        [*OUTCOMES, *COORDINATORS, *TRANSACTION_LOGS],
        NodesOptions(workload="txn_append", faults=("kill",)),
    ),
    "keeps_offsets_of_the_aborted": NodesOptions(
        workload="consume_transform_produce", faults=("kill",)
    ),
    **dict.fromkeys(SECURITY, NodesOptions(workload="authorized", faults=("kill",))),
    **dict.fromkeys(MIRRORS, NodesOptions(workload="mirror", faults=("kill",))),
    "acks_early_under_load": NodesOptions(workload="idempotent_send", faults=("pause_kill",)),
    "drops_the_newest_of_some_keys": NodesOptions(workload="compacted_register", config=_CLEANED),
    "takes_no_batch_that_began_earlier": NodesOptions(faults=("delete_records", "wipe", "kill")),
    **dict.fromkeys([*VOTER_RESPONSES, *VOTERS], _VOTERS),
    **dict.fromkeys(
        ["wiped_voter_votes", "counts_any_directory"],
        NodesOptions(faults=("change_voters", "wipe", "kill")),
    ),
    "snapshot_without_voters": replace(_VOTERS, config=_SMALL_SNAPSHOTS),
    "never_releases_throttles": _THROTTLED,
    "throttles_in_sync_replicas": _THROTTLED,
    **dict.fromkeys(REQUESTS, NodesOptions(workload="wire_rules")),
    **dict.fromkeys(GROUPS, NodesOptions(workload="group_consume")),
    **dict.fromkeys(
        [*CONSUMER_GROUPS, *MIXED_GROUPS], NodesOptions(workload="consumer_group_consume")
    ),
    **dict.fromkeys(
        ["waits_for_no_static_member", "assigns_no_new_topics", "waits_for_the_returned"],
        NodesOptions(workload="group_consume"),  # rules of classic groups
    ),
    **dict.fromkeys(
        TRANSACTIONAL_OFFSETS,
        NodesOptions(workload="consume_transform_produce", faults=("kill", "pause", "restart")),
    ),
}


def worlds_of(mutant: str) -> list[str]:
    """Return the worlds that have the mutant, the cheapest first."""
    return [name for name, world in WORLDS.items() if mutant in world.mutants]


def subjects_of(mutant: str) -> list[str]:
    """Return the simulations that can run a mutant, the cheapest first."""
    return [*worlds_of(mutant), NODES]


def simulated_command(mutant: str, subject: str, seed: int, *, is_sound: bool = False) -> str:
    """Return the command of an attempt in simulation, as a user types it.

    is_sound: the same run without the mutant.
    """
    command = ["quorumlog", "simulate", subject, "--seed", str(seed)]
    command += [] if is_sound else ["--mutant", mutant]
    if subject == NODES:
        return shlex.join([*command, *_nodes_options(mutant).arguments()])
    return shlex.join([*command, "--duration", f"{_world_ms(mutant) // 1000}s"])


def simulated(mutant: str, subject: str, seed: int, *, is_sound: bool = False) -> str:
    """Run one seed; return the rule or the anomaly that shows the bug, "" if none does.

    is_sound: run the product without the mutant, with the mutant's options.
    """
    planted = None if is_sound else mutant
    if subject != NODES:
        result = simulate(seed, world=subject, mutant=planted, duration_ms=_world_ms(mutant))
        return (result.violation or "").partition(":")[0]
    options = _nodes_options(mutant)
    try:
        run = simulate_nodes(
            seed,
            duration_ms=NODES_MS,
            workload=options.workload,
            faults=options.faults,
            config=dict(setting.split("=", 1) for setting in options.config),
            shape=options.shape,
            mutant=planted,
            until_violated=True,
        )
    except RunFailed:
        return ""
    if run.valid is not False:
        return ""
    told = [violation.partition(":")[0] for violation in run.violations] + [*run.anomalies]
    return str(told[0])


def _world_ms(mutant: str) -> int:
    return _LONGER_MS.get(mutant, _WORLD_MS)


def _nodes_options(mutant: str) -> NodesOptions:
    return NODES_OPTIONS.get(mutant, NodesOptions())
