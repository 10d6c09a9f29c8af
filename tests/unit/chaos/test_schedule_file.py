"""The file of a schedule: what is refused in it, and with which words."""

import json

import pytest

from quorumlog.chaos.faults.processes import Kill, KillAll, Pause
from quorumlog.chaos.schedule import Action, Schedule, ScheduleError


def one_action(**changes: object) -> str:
    action = {"t_us": 1, "duration_us": 2, "fault": "kill", "target": "any", **changes}
    action = {name: value for name, value in action.items() if value is not None}
    return json.dumps({"format": 2, "seed": 1, "duration_us": 9, "actions": [action]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a JSON object is expected"),
        ("{", "not JSON"),
        ('{"format": 3}', "format 3 is not a schedule's"),
        ('{"version": 1, "faults": []}', "format None is not a schedule's"),
        ('{"format": 2, "seed": 1, "duration_us": 9}', "actions = None: a list"),
        ('{"format": 2, "seed": 1, "duration_us": 9, "actions": [], "x": 1}', "no field 'x'"),
        ('{"format": 2, "seed": NaN, "duration_us": 9, "actions": []}', "NaN"),
        (one_action(t_us=None), "action 0: t_us = None: a whole number"),
        (one_action(t_us=-1), "action 0: t_us -1"),
        (one_action(t_us=True), "t_us = True: a whole number"),
        (one_action(fault="flood"), "no fault is called 'flood'; choose from kill, kill_all"),
        (one_action(target="boss"), "the target of kill is partition-leader, .*, not 'boss'"),
        (one_action(target=["1"]), r"target \['1'\]: one of partition-leader"),
        (one_action(fault="kill_all", target=[1]), "the target of kill_all is 'all'"),
        (one_action(direction="in"), "fault kill has no parameter 'direction'"),
        (one_action(fault="one_way_cut"), "fault one_way_cut needs direction"),
        (one_action(fault="one_way_cut", direction="up"), "direction = 'up': one of in, out"),
        (one_action(fault="loss", target="all", ppm="9"), "ppm = '9': a whole number is expected"),
        (one_action(fault="loss", target="all", ppm=-9), "ppm = -9: it must be from 0 to 1000000"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        Schedule.from_json(text)


def test_a_file_of_format_1_is_read() -> None:
    text = json.dumps(
        {
            "format": 1,
            "seed": 3,
            "actions": [
                {"t_us": 5, "fault": "kill-all", "target": "all", "duration_us": 6},
                {"t_us": 20, "fault": "pause", "target": "any", "duration_us": 1},
            ],
        }
    )
    assert Schedule.from_json(text) == Schedule(
        seed=3,
        duration_us=21,
        actions=(
            Action(t_us=5, fault=KillAll(), target="all", duration_us=6),
            Action(t_us=20, fault=Pause(), target="any", duration_us=1),
        ),
    )


def test_actions_out_of_order_are_refused() -> None:
    late, early = (Action(t_us=t_us, fault=Kill(), target="any") for t_us in (2, 1))
    with pytest.raises(ValueError, match="order of t_us"):
        Schedule(seed=1, duration_us=9, actions=(late, early))
