"""Every kind of fault, by name: a new one is a class in its file, and a line here.

Other packages add kinds by entry points of the group `quorumlog.faults`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, Literal, get_args, get_origin

from quorumlog.chaos.faults import (
    admin,
    answers,
    copies,
    disks,
    machines,
    partitions,
    processes,
    quorum,
    requests,
    traffic,
)
from quorumlog.chaos.faults.fault import Fault, FaultT, StepFault
from quorumlog.chaos.faults.links import Effect
from quorumlog.chaos.faults.node_groups import is_target
from quorumlog.chaos.registered import AddedParts, registered

_NOUNS: Final[Mapping[object, str]] = {
    int: "a whole number",
    str: "text",
    list: "a list",
    bool: "true or false",
    dict: "an object",
}
_ON_NODES: Final[tuple[type[Fault], ...]] = (
    processes.Kill, processes.KillAll, processes.CrashLoop, processes.PauseKill, processes.LagKill,
    processes.LateStart, processes.Pause, processes.PauseAll, processes.Restart,
    processes.RollingRestart, processes.Starve, copies.Wipe, disks.DiskFull, disks.DiskError,
    disks.SlowFsync, machines.ClockStep, admin.AdminChurn, admin.Reassign, admin.Grow,
    admin.Throttle, admin.Quota, admin.DeleteRecords, quorum.ChangeVoters, quorum.ReplaceVoter,
    copies.WipeMajority,
)  # fmt: skip
_ON_LINKS: Final[tuple[type[Fault], ...]] = (
    partitions.PartitionOne, partitions.PartitionHalves, partitions.PartitionRing,
    partitions.PartitionOneWay, partitions.IsolateRole, traffic.Delay, traffic.SlowLink,
    traffic.ResetConnections, traffic.RefuseConnections, requests.DropRequests,
    requests.DelayRequests, requests.ReplyLost, requests.AckKill, answers.AnswerRequests,
)  # fmt: skip
_SIMULATED: Final[tuple[type[Fault], ...]] = (
    traffic.Loss, traffic.Duplication, traffic.Reorder, partitions.Partition, partitions.OneWayCut,
    machines.PowerLoss, machines.PowerLossOfAll, machines.InterruptedWrite, disks.FsyncError,
    disks.SlowDisk, disks.DiskStall, machines.ClockDrift, quorum.Resign, quorum.FalseNotice,
    admin.AlterLogDirs, copies.Damage, copies.DamageClosed, copies.OldDirectory, disks.FsyncLoss,
    machines.PowerLossOfSeveral,
)  # fmt: skip

FAULTS: Final[Mapping[str, type[Fault]]] = {
    kind.name: kind for kind in (*_ON_NODES, *_ON_LINKS, *_SIMULATED)
}
STEP_FAULTS: Final[dict[str, type[StepFault]]] = {
    name: kind for name, kind in FAULTS.items() if issubclass(kind, StepFault)
}


def _kind_of(name: str, part: object) -> type[StepFault]:
    if not isinstance(part, type) or not issubclass(part, StepFault):
        raise TypeError("it is no subclass of quorumlog.chaos.faults.fault.StepFault")
    if getattr(part, "name", None) != name:
        named = f"it is named {part.name!r}" if hasattr(part, "name") else "it has no name"
        raise ValueError(f"{named}: decorate it with @named({name!r}, ...)")
    if missing := [one.name for one in fields(part) if one.default is MISSING]:
        raise ValueError(f"its parameter {missing[0]} needs a default")
    return part


ADDED_FAULTS: Final = AddedParts("fault", FAULTS, _kind_of, "quorumlog.faults")
"""The kinds of other packages: each is decorated by `faults.fault.named`."""


class FaultUnsupported(ValueError):
    """A back end lacks a fault. The message names both, and the faults of the back end."""

    def __init__(self, name: str, back_end: str, can: Iterable[str], why: str = "") -> None:
        names = ", ".join(sorted(can)) or "nothing"
        reason = f" ({why})" if why else ""
        super().__init__(f"fault {name}: {back_end} cannot do it{reason}; it can do {names}")


def fault_kind(name: str) -> type[Fault]:
    """Return the kind of this name, in which `-` may stand for `_`. Raises ValueError."""
    plain = name.replace("-", "_")
    if plain in FAULTS:
        return FAULTS[plain]
    return registered(STEP_FAULTS, plain, "fault", ADDED_FAULTS)


def known_step_fault(name: str) -> type[StepFault] | None:
    """Return the kind of this name; None: neither the lab nor an installed package has it."""
    return STEP_FAULTS.get(name) or ADDED_FAULTS.find(name)


def step_fault(name: str, usable: Mapping[str, object] = STEP_FAULTS) -> type[StepFault]:
    """Return the kind of this name if steps make it up.

    Raises ValueError that lists `usable`: the faults, some of STEP_FAULTS, of a back end.
    """
    if (plain := name.replace("-", "_")) in FAULTS.keys() - STEP_FAULTS.keys():
        raise FaultUnsupported(plain, "a cluster of processes", usable)
    kind = known_step_fault(plain)
    if kind is None:
        registered({**usable, **dict.fromkeys(ADDED_FAULTS.names)}, plain, "fault")
        raise FaultUnsupported(plain, "a cluster of processes", usable)
    return kind


def fault_and_role(
    text: str, usable: Mapping[str, object] = STEP_FAULTS
) -> tuple[type[StepFault], str | None]:
    """Return the kind of `kill` or of `kill:partition-leader`, and its role if it has one.

    Raises ValueError; for an unknown name it lists `usable`.
    """
    name, colon, role = text.partition(":")
    kind = step_fault(name, usable)
    if colon and not is_target(role, kind.targets):
        raise ValueError(f"{text}: the target of {kind.name} is one of {', '.join(kind.targets)}")
    return kind, role if colon else None


def configured_fault(name: str, parameters: Mapping[str, int | str]) -> StepFault:
    """Return a fault that steps make up. Raises ValueError for an unknown fault or parameter."""
    kind = step_fault(name)
    known = dict.fromkeys(each.name for each in fields(kind))
    for parameter in parameters:
        registered(known, parameter, f"parameter of {kind.name}")
    return fault_of(kind, parameters)


def fault_of(kind: type[FaultT], given: Mapping[str, Any]) -> FaultT:
    """Return a fault with the given parameters. Raises ValueError."""
    parameters = {parameter.name: parameter for parameter in fields(kind)}
    for name, value in given.items():
        if name not in parameters:
            raise ValueError(f"fault {kind.name} has no parameter {name!r}")
        check_type(name, value, parameters[name].type)
    for name, parameter in parameters.items():
        if parameter.default is MISSING and name not in given:
            raise ValueError(f"fault {kind.name} needs {name}")
    return kind(**given)


def check_type(name: str, value: object, expected: object) -> None:
    """Raise ValueError unless a value of JSON has the type of a field: int, str, bool, Literal."""
    if get_origin(expected) is Literal:
        choices = get_args(expected)
        if value not in choices:
            raise ValueError(f"{name} = {value!r}: one of {', '.join(choices)} is expected")
    elif type(value) is not expected:
        raise ValueError(f"{name} = {value!r}: {_NOUNS[expected]} is expected")


def faults_made_of(
    operations: Collection[str],
    effects: Collection[type[Effect]],
    added: Iterable[type[Fault]] = (),
) -> list[str]:
    """Return the names of the faults that need no other operations and effects than these.

    `added`: kinds of other packages that are considered, too.
    """
    more = {kind.name: kind for kind in added if issubclass(kind, StepFault)}
    return [
        name
        for name, kind in (STEP_FAULTS | more).items()
        if kind.needs <= {*operations} and kind.imposes <= {*effects}
    ]


def check_supported(
    names: Iterable[str], *, back_end: str, can: Iterable[str], why_not: Callable[[str], str]
) -> None:
    """Raise FaultUnsupported for the first of `names` that is not one of those in `can`."""
    known = set(can)
    for name in names:
        if name not in known:
            raise FaultUnsupported(name, back_end, known, why_not(name))
