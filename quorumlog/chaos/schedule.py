"""The schedule of a run: which fault, when, against which target, for how long. Pure data.

`chaos run` and `simulate` write and read the same JSON file of format 2:

  {"format": 2, "seed": 3, "duration_us": 20000000,
   "workload": "append_read", "options": {"producers": 8},
   "actions": [
     {"t_us": 1000000, "duration_us": 1500000, "fault": "kill", "target": "partition-leader"},
     {"t_us": 5000000, "duration_us": 800000, "fault": "one_way_cut", "target": [2],
      "direction": "in"}]}

A target is a role, which the back end resolves when the fault is due, or a list of node ids. The
parameters of a fault are beside the fields that every action has. With `"paced": true`, as in a
drawn schedule, an action waits until the nodes of earlier ones are back (`pace`); without, the
actions keep their times.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar, cast

from quorumlog.chaos.faults.fault import ALL, CLIENT, NODE_ROLES, RACK, Fault
from quorumlog.chaos.faults.node_groups import is_target
from quorumlog.chaos.faults.registry import check_supported, check_type, fault_kind, fault_of

FORMAT: Final = 2
_FORMAT_1: Final = 1  # of `chaos run`: no duration, no workload, no parameters

Target = str | tuple[int, ...]
Option = bool | int | float | str | tuple[int, ...]
"""The value of an option of a workload, or of a simulated world."""

_Kind = TypeVar("_Kind")
_ACTION_FIELDS: Final = ("t_us", "duration_us", "fault", "target")


class ScheduleError(ValueError):
    """A file is not a schedule; the message has the place and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One fault: it is injected at `t_us`, counted from the start, and lasts `duration_us`.

    Raises ValueError for a negative time, or for a target that the fault cannot have.
    """

    t_us: int
    fault: Fault
    target: Target
    duration_us: int = 0

    def __post_init__(self) -> None:
        if self.t_us < 0 or self.duration_us < 0:
            raise ValueError(f"t_us {self.t_us}, duration_us {self.duration_us}: below 0")
        if isinstance(self.target, str) and not is_target(self.target, self.fault.targets):
            roles = ", ".join(self.fault.targets)
            raise ValueError(f"the target of {self.fault.name} is {roles}, not {self.target!r}")
        if isinstance(self.target, tuple) and self.fault.targets == (ALL,):
            raise ValueError(f"the target of {self.fault.name} is {ALL!r}, not single nodes")

    @property
    def end_us(self) -> int:
        """When the fault is healed."""
        return self.t_us + self.duration_us

    def as_json(self) -> dict[str, Any]:
        """Return the object of the action for a file."""
        return {
            "t_us": self.t_us,
            "duration_us": self.duration_us,
            "fault": self.fault.name,
            "target": self.target if isinstance(self.target, str) else list(self.target),
            **asdict(self.fault),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Actions in order of `t_us`, and the other data that a repetition of the run needs.

    `workload` names the load: a workload of `chaos run` or a world of the simulator, with its
    `options`. "" leaves that to the caller. Raises ValueError for actions out of order.
    """

    seed: int
    duration_us: int
    actions: tuple[Action, ...] = ()
    workload: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    paced: bool = False

    def __post_init__(self) -> None:
        if self.duration_us < 0:
            raise ValueError(f"duration_us {self.duration_us}: below 0")
        times = [action.t_us for action in self.actions]
        if times != sorted(times):
            raise ValueError("the actions are not in order of t_us")

    def check_supported(
        self, *, back_end: str, can: Iterable[str], why_not: Callable[[str], str] = lambda _: ""
    ) -> None:
        """Raise FaultUnsupported if an action needs a fault that is not in `can`."""
        names = (action.fault.name for action in self.actions)
        check_supported(names, back_end=back_end, can=can, why_not=why_not)

    def to_json(self) -> str:
        """Return the text of the file."""
        document = {
            "format": FORMAT,
            "seed": self.seed,
            "duration_us": self.duration_us,
            "workload": self.workload,
            "options": dict(self.options),
            **({"paced": True} if self.paced else {}),
            "actions": [action.as_json() for action in self.actions],
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Schedule":
        """Read the text of a file. Raises ScheduleError: a file is untrusted input."""
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"not JSON: {error}") from error
        if not isinstance(document, dict):
            raise ScheduleError("not a schedule: a JSON object is expected")
        if document.get("format") == _FORMAT_1:
            return _schedule_of(_from_format_1(document))
        if document.get("format") != FORMAT:
            raise ScheduleError(
                f"format {document.get('format')!r} is not a schedule's: {FORMAT} is expected"
            )
        return _schedule_of(document)


def _refuse_constant(name: str) -> None:
    raise ScheduleError(f"{name} is no number of JSON")


def _schedule_of(document: Mapping[str, Any]) -> Schedule:
    expected = {"format", "seed", "duration_us", "workload", "options", "paced", "actions"}
    if unknown := sorted(document.keys() - expected):
        raise ScheduleError(f"a schedule has no field {unknown[0]!r}")
    document = {"workload": "", "options": {}, "paced": False, **document}
    try:
        actions = enumerate(_field(document, "actions", list))
        options = _field(document, "options", dict).items()
        return Schedule(
            seed=_field(document, "seed", int),
            duration_us=_field(document, "duration_us", int),
            actions=tuple(_action_of(place, action) for place, action in actions),
            workload=_field(document, "workload", str),
            options={name: _option_of(name, value) for name, value in options},
            paced=_field(document, "paced", bool),
        )
    except ScheduleError:
        raise
    except ValueError as error:
        raise ScheduleError(str(error)) from error


def _from_format_1(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document in format 2: it lasts until its last action ends."""
    actions = document.get("actions")
    listed = actions if isinstance(actions, list) else []
    known = [action for action in listed if isinstance(action, dict)]
    ends = [_field(action, "t_us", int) + _field(action, "duration_us", int) for action in known]
    return {**document, "format": FORMAT, "duration_us": max(ends, default=0)}


def _action_of(place: int, document: object) -> Action:
    try:
        if not isinstance(document, dict):
            raise ScheduleError("an object is expected")
        kind = fault_kind(str(document.get("fault")))
        given = {name: value for name, value in document.items() if name not in _ACTION_FIELDS}
        return Action(
            t_us=_field(document, "t_us", int),
            duration_us=_field(document, "duration_us", int),
            fault=fault_of(kind, given),
            target=_target_of(document.get("target")),
        )
    except ValueError as error:
        raise ScheduleError(f"action {place}: {error}") from error


def _field(document: Mapping[str, Any], name: str, kind: type[_Kind]) -> _Kind:
    """Return the field of the document. Raises ScheduleError if it has another type."""
    value = document.get(name)
    try:
        check_type(name, value, kind)
    except ValueError as error:
        raise ScheduleError(str(error)) from error
    return cast(_Kind, value)


def _target_of(target: object) -> Target:
    if isinstance(target, str):
        return target
    if isinstance(target, list) and all(type(node_id) is int for node_id in target):
        return tuple(target)
    known = ", ".join((*NODE_ROLES, f"{RACK}:NAME", CLIENT, ALL))
    raise ScheduleError(f"target {target!r}: one of {known}, or a list of node ids, is expected")


def _option_of(name: str, value: object) -> Option:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    raise ScheduleError(f"option {name} = {value!r}: a number, text or whole numbers are expected")
