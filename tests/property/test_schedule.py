"""A schedule is read back as it was written; a file with any other content is refused."""

import json
from dataclasses import Field, fields
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from quorumlog.chaos.faults.apis import APIS
from quorumlog.chaos.faults.fault import ALL, Fault
from quorumlog.chaos.faults.registry import FAULTS, FaultUnsupported
from quorumlog.chaos.schedule import Action, Schedule, ScheduleError

INT64 = st.integers(0, 2**63 - 1)
OPTIONS = st.dictionaries(
    st.text(),
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.lists(st.integers()).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def values(parameter: Field[Any]) -> st.SearchStrategy[Any]:
    of: Any = parameter.type
    if parameter.name == "api":
        return st.sampled_from(sorted(APIS))
    if get_origin(of) is Literal:
        return st.sampled_from(get_args(of))
    legal = parameter.metadata.get("range", (100_000, 1_000_000))
    return st.text() if of is str else st.integers(*legal)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(sorted(FAULTS.values(), key=lambda kind: kind.name)))
    parameters = {parameter.name: draw(values(parameter)) for parameter in fields(kind)}
    try:
        return kind(**parameters)
    except ValueError:  # an error that the request's response cannot have, and the like
        reject()


@st.composite
def actions(draw: st.DrawFn) -> Action:
    fault = draw(faults())
    target: Any = st.sampled_from(fault.targets)
    if fault.targets != (ALL,):
        target |= st.lists(st.integers()).map(tuple)
    return Action(t_us=draw(INT64), fault=fault, target=draw(target), duration_us=draw(INT64))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    return Schedule(
        seed=draw(st.integers()),
        duration_us=draw(INT64),
        actions=tuple(sorted(draw(st.lists(actions())), key=lambda action: action.t_us)),
        workload=draw(st.text()),
        options=draw(OPTIONS),
    )


@given(schedules())
def test_what_is_written_is_read_back(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule


@given(schedules(), st.data())
def test_a_damaged_file_is_refused_or_is_another_schedule(
    schedule: Schedule, data: st.DataObject
) -> None:
    document = json.loads(schedule.to_json())
    place = document
    while isinstance(place, list | dict) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], list | dict) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON)
        break
    try:
        read = Schedule.from_json(json.dumps(document))
    except ScheduleError:
        return
    assert Schedule.from_json(read.to_json()) == read


@given(st.text() | JSON.map(json.dumps))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError):
        Schedule.from_json(text)


@given(schedules())
def test_a_back_end_refuses_by_name_what_it_cannot_do(schedule: Schedule) -> None:
    can = {"kill", "pause"}
    others = [action.fault.name for action in schedule.actions if action.fault.name not in can]
    if not others:
        schedule.check_supported(back_end="these nodes", can=can)
        return
    with pytest.raises(FaultUnsupported, match=f"fault {others[0]}: these nodes cannot do it"):
        schedule.check_supported(back_end="these nodes", can=can)
