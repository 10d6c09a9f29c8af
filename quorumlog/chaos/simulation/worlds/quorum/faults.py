"""What can go wrong in a simulated run, drawn from its seed as data: a schedule.

Swarm testing: each class of fault is on or off per seed, and its strength is drawn per seed. A
schedule is JSON: it replays, and it can be made smaller. All numbers are integers.
"""

from collections.abc import Collection, Mapping
from random import Random
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.randomness import seeded

Fault = dict[str, Any]
Schedule = dict[str, Any]

FAULTS: Final[Mapping[str, str]] = {
    "loss": "messages are lost",
    "duplication": "messages arrive twice",
    "delay": "messages take long",
    "reorder": "some messages arrive much later than those sent after them",
    "partition": "some nodes and the others cannot reach each other",
    "one_way_cut": "what a node sends is lost, or what is sent to it",
    "kill": "a process dies and starts again; the system keeps what it wrote",
    "power_loss": "a machine loses what was not fsynced, perhaps with a torn tail",
    "pause": "a process stands still, then goes on",
    "clock_drift": "the clocks run at different speeds",
    "slow_disk": "an fsync takes long",
    "fsync_error": "an fsync fails, and the machine starts again",
    "resign": "a leader is asked to resign",
    "false_notice": "a node is told that its leader's process died, and it did not",
    "interrupted_write": "a machine loses power in the middle of a write, or of a recovery",
}
_SCHEDULED: Final = (
    "partition", "one_way_cut", "kill", "power_loss", "pause", "fsync_error", "resign",
    "false_notice", "interrupted_write",
)  # fmt: skip
_FIELDS: Final = {"interrupted_write": {"target", "file", "writes", "times"}}
VERSION: Final = 1
MILLION: Final = 1_000_000
OBSERVERS_MAX: Final = 2


def check_schedule(document: object) -> Schedule:
    """Return `document` if it is a schedule. Raises ValueError: it is somebody's file."""
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"not a schedule of version {VERSION}")
    nodes, duration_ms = document.get("nodes"), document.get("duration_ms")
    if not (isinstance(nodes, int) and isinstance(duration_ms, int) and nodes > 0):
        raise ValueError("nodes and duration_ms must be whole numbers")
    known = draw_schedule(0, nodes=nodes, duration_ms=duration_ms, faults=())["parameters"]
    parameters, faults = document.get("parameters"), document.get("faults")
    if not isinstance(parameters, dict) or parameters.keys() != known.keys():
        raise ValueError(f"parameters must be {', '.join(known)}")
    for fault in faults if isinstance(faults, list) else [faults]:
        if not (
            isinstance(fault, dict)
            and fault.get("fault") in _SCHEDULED
            and isinstance(fault.get("at_ms"), int)
            and _FIELDS.get(fault["fault"], {"target"}) <= fault.keys()
        ):
            raise ValueError(f"not a fault at a time: {fault}; there are {', '.join(_SCHEDULED)}")
    return document


def draw_schedule(
    seed: int, *, nodes: int, duration_ms: int, faults: Collection[str] | None
) -> Schedule:
    """Return the schedule of a seed; `faults`: exactly these classes, None: a random choice.

    Voters are numbered from 1 to `nodes`, observers after them.
    """
    swarm = seeded("swarm", seed)
    drawn = {name: swarm.random() < 0.5 for name in FAULTS}
    is_on = drawn if faults is None else {name: name in faults for name in FAULTS}
    parameters = _draw_parameters(seeded("parameters", seed), nodes, is_on)
    machines = nodes + parameters["observers"]
    return {
        "version": VERSION,
        "nodes": nodes,
        "duration_ms": duration_ms,
        "parameters": parameters,
        "faults": _draw_faults(seeded("faults", seed), machines, duration_ms, is_on),
    }


def _draw_parameters(rng: Random, nodes: int, is_on: Mapping[str, bool]) -> dict[str, Any]:
    """Draw them all, always in the same order: a class that is off changes no other."""

    def drawn(fault: str, low: int, high: int, otherwise: int) -> int:
        value = rng.randrange(low, high)
        return value if is_on[fault] else otherwise

    return {
        "loss_ppm": drawn("loss", 1_000, 250_000, 0),
        "duplicate_ppm": drawn("duplication", 1_000, 300_000, 0),
        "delay_min_us": drawn("delay", 100, 20_000, 200),
        "delay_spread_us": drawn("delay", 1_000, 80_000, 500),
        "late_ppm": drawn("reorder", 1_000, 100_000, 0),
        "late_us": drawn("reorder", 50_000, 3_000_000, 0),
        "fsync_min_us": drawn("slow_disk", 100, 20_000, 100),
        "fsync_spread_us": drawn("slow_disk", 1_000, 300_000, 2_000),
        "observers": rng.randrange(OBSERVERS_MAX + 1),
        "clock_ppm": [
            drawn("clock_drift", 800_000, 1_250_000, MILLION) for _ in range(nodes + OBSERVERS_MAX)
        ],
        "propose_every_us": rng.randrange(20_000, 200_000),
        "batch_records_max": rng.randrange(1, 4),
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
        "is_death_noticed": rng.randrange(2),
        "is_minority_left_down": rng.randrange(2),
    }


def _draw_faults(
    rng: Random, nodes: int, duration_ms: int, is_on: Mapping[str, bool]
) -> list[Fault]:
    faults: list[Fault] = []
    for name in _SCHEDULED:
        child = seeded(name, rng.getrandbits(64))  # so that no class shifts the draws of another
        every_ms = child.randrange(800, 10_000)
        hunts_leaders = child.random() < 0.5
        if not is_on[name]:
            continue
        at_ms = child.randrange(every_ms)
        while at_ms < duration_ms:
            faults.append(_draw_fault(child, name, at_ms, nodes, hunts_leaders=hunts_leaders))
            at_ms += child.randrange(1, 2 * every_ms)
    return sorted(faults, key=lambda fault: (fault["at_ms"], fault["fault"]))


def _draw_fault(rng: Random, name: str, at_ms: int, nodes: int, *, hunts_leaders: bool) -> Fault:
    node = rng.randrange(1, nodes + 1)
    target: list[int] | str = [node]
    if hunts_leaders and rng.random() < 0.7:
        target = "leader"
    elif name == "partition":
        target = [member for member in range(1, nodes + 1) if rng.random() < 0.5]
    fault: Fault = {"at_ms": at_ms, "fault": name, "target": target}
    if name == "interrupted_write":
        fault["file"] = rng.choice(("", "quorum-state"))
        fault["writes"] = rng.randrange(1, 6 if fault["file"] else 40)
        fault["times"] = rng.choice((1, 1, 2, 3))  # more than once: also while it recovers
    elif name not in {"resign", "false_notice"}:
        fault["duration_ms"] = rng.randrange(10, rng.choice((300, 2_000, 8_000)))
    if name == "one_way_cut":
        fault["direction"] = rng.choice(("in", "out"))
    return fault
