"""Draws the faults of a seed for whole nodes: some kinds, each at its own pace, overlapping.

Overlapping faults find bugs in seconds that consecutive faults do not find. Each kind has a random
generator of its own, for its choice and its parameters: a kind that is removed or added leaves the
other kinds as they are.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from random import Random
from typing import Any, Final

from quorumlog.chaos.faults.copies import KINDS as DAMAGES
from quorumlog.chaos.faults.fault import ALL, MILLION, RACK, ROLES, StepFault
from quorumlog.chaos.faults.registry import ADDED_FAULTS, STEP_FAULTS
from quorumlog.chaos.node_simulation.settings import JUDGED
from quorumlog.chaos.registered import registered
from quorumlog.chaos.schedule import Action, Option, Schedule
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.workloads.registry import find_workload

_KINDS: Final = (
    "kill", "kill_all", "crash_loop", "pause", "pause_all", "pause_kill", "restart",
    "rolling_restart", "starve", "wipe", "power_loss", "power_loss_all", "fsync_error",
    "slow_disk", "clock_drift",
    "partition_one", "partition_halves", "partition_ring", "partition_one_way", "isolate_role",
    "disk_full", "disk_error", "slow_fsync", "clock_step",
    "delay", "slow_link", "reset", "refuse", "drop_request", "delay_request", "reply_lost",
    "ack_kill", "lag_kill", "late_start", "answer",
    "admin_churn", "reassign", "grow", "throttle", "quota", "delete_records", "alter_log_dirs",
    "change_voters", "replace_voter",
    "damage", "damage_closed", "old_directory", "fsync_loss", "power_loss_several",
)  # fmt: skip
KINDS: Final[Mapping[str, type[StepFault]]] = {name: STEP_FAULTS[name] for name in _KINDS}
"""The kinds that a swarm may draw."""

# Only log.flush.acks survives the first; the second needs several log directories. The others
# destroy copies without limit, so that other rules judge a run with one of them. `answer` and
# `quota` test clients, not brokers.
_BY_NAME_ONLY: Final = frozenset(
    {"power_loss_all", "alter_log_dirs", "ack_kill", "lag_kill", "late_start"}
    | {"answer", "quota", *JUDGED}
)
_DRAWN_FOR: Final = {"idempotent_send": frozenset({"ack_kill"})}
"""By workload, faults that it alone can judge: they are drawn for it, and else only by name."""

LOSSES: Final = "losses"
"""Stands for a choice by the seed: faults that destroy copies, and some other faults."""
_TAKE_COPIES: Final = ("damage", "old_directory", "fsync_loss", "power_loss_several")
_BESIDE_LOSSES: Final = (
    "kill", "kill_all", "crash_loop", "pause", "pause_kill", "partition_one", "isolate_role",
    "power_loss", "disk_error",
)  # fmt: skip
_SHARE_OF_LOSSES, _SHARE_BESIDE = 0.5, 0.25
_SEEN_AT_A_START: Final = tuple(what for what in DAMAGES if what != "log_bit")
"""The damage that a start detects; a flipped bit in a closed log is found only by a read."""

NOT_DRAWN: Final[Mapping[str, str]] = {
    "partition": "it is partition_one",
    "one_way_cut": "it is partition_one_way",
}
"""The kinds of simulated machines that a swarm leaves out, with the reason."""

_SHARES_OF_KINDS: Final = (0.08, 0.15, 0.25)
_SHARE_OF_RACKS: Final = 0.3
_MEAN_GAPS_S: Final = (1.0, 2.0, 4.0)
_LONGEST_S: Final = (0.3, 1.5, 6.0)
_GAP_S_MIN: Final = 0.2
_GAP_AFTER_ALL_S: Final = 2.0  # a cluster that is always down shows no bugs
_GAP_AFTER_WIPE_S: Final = 4.0  # the node fetches all its data again


def draw_swarm(
    seed: int,
    *,
    duration_ms: int,
    faults: Collection[str] | None = None,
    workload: str = "",
    options: Mapping[str, Option] | None = None,
    has_racks: bool = False,
) -> Schedule:
    """Return the schedule of a seed. `faults`: exactly these kinds; None: a random choice.

    LOSSES among them also stands for a random choice. `has_racks`: some faults hit whole racks.

    Raises ValueError for an unknown kind.
    """
    if faults is None:
        chosen = [KINDS[name] for name in _chosen(seed, _DRAWN_FOR.get(workload, frozenset()))]
    else:
        chosen = [
            registered(KINDS, name.replace("-", "_"), "fault", ADDED_FAULTS)
            for given in faults
            for name in (_chosen_losses(seed) if given == LOSSES else (given,))
        ]
        chosen = [*dict.fromkeys(chosen)]
    has_transactions = bool(workload) and "transactions" in find_workload(workload).requires
    requests = _REQUESTS + (_OF_TRANSACTIONS if has_transactions else ())
    drawn = [
        action
        for kind in chosen
        for action in _drawn(seed, kind, duration_ms / 1000, requests, has_racks)
    ]
    return Schedule(
        seed=seed,
        duration_us=duration_ms * 1000,
        actions=tuple(sorted(drawn, key=lambda action: (action.t_us, action.fault.name))),
        workload=workload,
        options=options or {},
    )


def _chosen(seed: int, also: Set[str]) -> list[str]:
    """Return the chosen kinds: each by its own draw, and at least one kind."""
    share = seeded("share of kinds", seed).choice(_SHARES_OF_KINDS)
    drawn = KINDS.keys() - _BY_NAME_ONLY | also
    draws = {name: seeded(f"is {name} in", seed).random() for name in KINDS if name in drawn}
    chosen = [name for name, draw in draws.items() if draw < share]
    return chosen or [min(draws, key=lambda name: draws[name])]


def _chosen_losses(seed: int) -> list[str]:
    """Return a choice of faults: at least one that destroys copies, and some others."""
    shares = dict.fromkeys(_TAKE_COPIES, _SHARE_OF_LOSSES) | dict.fromkeys(
        _BESIDE_LOSSES, _SHARE_BESIDE
    )
    draws = {name: seeded(f"is {name} in, with losses", seed).random() for name in shares}
    chosen = [name for name in shares if draws[name] < shares[name]]
    if not {*chosen} & {*_TAKE_COPIES}:
        chosen.append(min(_TAKE_COPIES, key=lambda name: draws[name]))
    return chosen


def _drawn(
    seed: int,
    kind: type[StepFault],
    duration_s: float,
    requests: Sequence[tuple[str, str]],
    has_racks: bool,
) -> Iterator[Action]:
    rng = seeded(f"faults {kind.name}", seed)
    mean_gap_s, longest_s = rng.choice(_MEAN_GAPS_S), rng.choice(_LONGEST_S)
    at_s = rng.random() * mean_gap_s
    while at_s < duration_s:
        lasts_s = 0.05 + rng.random() * longest_s
        target = _target(kind, rng, has_racks)
        parameters = _request(rng, requests) if kind.name in _OF_REQUESTS else {}
        parameters |= _PARAMETERS.get(kind.name, _nothing)(rng)
        yield Action(
            t_us=int(at_s * MILLION),
            duration_us=int(min(lasts_s, max(0.05, duration_s - at_s)) * MILLION),
            fault=kind(**parameters),
            target=target,
        )
        at_s += rng.random() * 2 * mean_gap_s + _GAP_S_MIN
        at_s += _GAP_AFTER_ALL_S if target == ALL and kind.name not in _MILD else 0.0
        at_s += _GAP_AFTER_WIPE_S if kind.destroys else 0.0


def _target(kind: type[StepFault], rng: Random, has_racks: bool) -> str:
    """Draw a target: mostly a role of a single node, where most faults do most harm.

    Without racks, a seed draws as if there were no such target.
    """
    if has_racks and RACK in kind.targets and rng.random() < _SHARE_OF_RACKS:
        return RACK
    if {*ROLES} <= {*kind.targets} and rng.random() < 0.7:
        return rng.choice(ROLES)
    return rng.choice([target for target in kind.targets if target != RACK])


_MILD: Final = frozenset(
    {"slow_disk", "delay", "slow_link", "drop_request", "delay_request", "reply_lost"}
    | {"answer", "admin_churn", "grow", "throttle", "quota", "delete_records"}
)
"""Faults under which a cluster continues, even if they hit all of its nodes."""

_REQUESTS: Final = (
    ("Fetch", "target"), ("Fetch", "nodes"), ("Fetch", "clients"), ("Produce", "clients"),
    ("Metadata", "clients"), ("ListOffsets", "clients"), ("InitProducerId", "clients"),
    ("FindCoordinator", "clients"), ("JoinGroup", "clients"), ("SyncGroup", "clients"),
    ("Heartbeat", "clients"), ("OffsetCommit", "clients"), ("OffsetFetch", "clients"),
    ("OffsetForLeaderEpoch", "nodes"), ("AlterPartition", "target"), ("AlterPartition", "nodes"),
    ("BrokerHeartbeat", "target"), ("RegisterBroker", "target"), ("control/Fetch", "target"),
    ("control/Fetch", "nodes"), ("Vote", "target"), ("Vote", "nodes"),
    ("BeginQuorumEpoch", "target"), ("EndQuorumEpoch", "target"), ("AllocateProducerIds", "target"),
    ("control/CreateTopics", "nodes"),
)  # fmt: skip
"""(request to lose or delay, its sender)."""

_OF_TRANSACTIONS: Final = (
    ("AddPartitionsToTxn", "clients"), ("AddPartitionsToTxn", "nodes"),
    ("AddOffsetsToTxn", "clients"), ("TxnOffsetCommit", "clients"), ("EndTxn", "clients"),
    ("WriteTxnMarkers", "nodes"), ("WriteTxnMarkers", "target"),
)  # fmt: skip
"""The same for workloads with transactions; other workloads never send these requests."""

_ANSWERS: Final = (
    ("Produce", "NOT_LEADER_OR_FOLLOWER", "refused"),
    ("Produce", "NOT_LEADER_OR_FOLLOWER", "appended"),
    ("Produce", "NOT_ENOUGH_REPLICAS", "refused"),
    ("Produce", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "appended"),
    ("Produce", "REQUEST_TIMED_OUT", "appended"),
    ("Fetch", "NOT_LEADER_OR_FOLLOWER", "refused"),
    ("Fetch", "FENCED_LEADER_EPOCH", "refused"),
    ("Fetch", "FETCH_SESSION_ID_NOT_FOUND", "refused"),
    ("Metadata", "LEADER_NOT_AVAILABLE", "refused"),
    ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", "refused"),
    ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", "refused"),
    ("OffsetCommit", "NOT_COORDINATOR", "appended"),
    ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS", "appended"),
)  # fmt: skip
"""(request to answer, its error, whether it is carried out): clients try all of them again."""
_OF_REQUESTS: Final = frozenset({"drop_request", "delay_request", "reply_lost"})


def _request(rng: Random, requests: Sequence[tuple[str, str]]) -> dict[str, Any]:
    api, sender = rng.choice(requests)
    return {"api": api, "sender": sender}


def _nothing(_: Random) -> dict[str, Any]:
    return {}


def _share_ppm(rng: Random) -> int:
    return rng.choice((MILLION, MILLION // 2, MILLION // 10))


_PARAMETERS: Final[Mapping[str, Callable[[Random], dict[str, Any]]]] = {
    "slow_disk": lambda rng: {"min_us": 100, "spread_us": rng.randrange(10_000, 500_000)},
    "clock_drift": lambda rng: {
        "rate_ppm": rng.randrange(4 * MILLION // 5, 5 * MILLION // 4)
    },
    "crash_loop": lambda rng: {
        "times": rng.randrange(2, 5), "alive_us": rng.randrange(1, 2 * MILLION),
    },
    "ack_kill": lambda rng: {"unanswered_us": rng.randrange(50_000, 1_500_000)},
    "lag_kill": lambda rng: {"behind_us": rng.randrange(100_000, 6 * MILLION)},
    "late_start": lambda rng: {"late_us": rng.randrange(100_000, 8 * MILLION)},
    "pause_kill": lambda rng: {"alone_us": rng.randrange(10_000, 1_500_000)},
    "rolling_restart": lambda rng: {"between_us": rng.randrange(0, MILLION)},
    "disk_full": lambda rng: {"left_bytes": max(0, rng.randrange(-20_000, 20_000))},
    "disk_error": lambda rng: {"calls": rng.choice(("all", "reads", "writes", "syncs"))},
    "slow_fsync": lambda rng: {
        "us": rng.randrange(10_000, rng.choice((MILLION // 2, 3 * MILLION, 12 * MILLION)))
    },
    "clock_step": lambda rng: {"step_ms": rng.choice((50, 5_000, 600_000, 86_400_000))},
    "admin_churn": lambda rng: {"per_s": rng.choice((2, 5, 20))},
    "throttle": lambda rng: {"bytes_per_s": rng.choice((500, 5_000, 50_000))},
    "quota": lambda rng: {"bytes_per_s": rng.choice((2_000, 20_000, 200_000))},
    "damage": lambda rng: {"what": rng.choice(DAMAGES)},
    "damage_closed": lambda rng: {"what": rng.choice(_SEEN_AT_A_START)},
    "old_directory": lambda rng: {
        "age_us": rng.randrange(50_000, 6 * MILLION), "directories": rng.choice(("all", "one")),
        "end": rng.choice(("kill", "kill", "stop")),
    },
    "fsync_loss": lambda rng: {"alive_us": rng.randrange(1, 2 * MILLION)},
    "starve": lambda rng: {"share_percent": rng.randrange(3, 50)},
    "delay": lambda rng: {
        "min_us": rng.randrange(0, 50_000), "spread_us": rng.choice((20_000, 200_000, 1_500_000)),
    },
    "slow_link": lambda rng: {"bytes_per_s": rng.choice((2_000, 20_000, 200_000))},
    "reset": lambda rng: {"every_us": rng.choice((0, 100_000, 700_000))},
    "drop_request": lambda rng: {"share_ppm": _share_ppm(rng)},
    "delay_request": lambda rng: {"us": rng.choice((50_000, 400_000, 2_500_000))},
    "reply_lost": lambda rng: {"share_ppm": _share_ppm(rng)},
    "answer": lambda rng: {
        **dict(zip(("api", "error", "after"), rng.choice(_ANSWERS), strict=True)),
        "share_ppm": _share_ppm(rng),
    },
}  # fmt: skip
"""Kind -> its drawn parameters, in place of its defaults."""
