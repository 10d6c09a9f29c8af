"""What `chaos run` takes from the file of --schedule, and what the command line overrides."""

import pytest

from quorumlog.chaos.schedule import Schedule
from quorumlog.cli.chaos_commands import _duration_s, _workload

FILE = Schedule(
    seed=1, duration_us=7_000_000, workload="idempotent_send", options={"burst": 3, "rate": 9.0}
)


@pytest.mark.parametrize(
    ("name", "given", "rate", "schedule", "expected"),
    [
        (None, [], None, None, ("append_read", {})),
        (None, ["producers=2"], 5.0, None, ("append_read", {"producers": "2", "rate": 5.0})),
        (None, [], None, FILE, ("idempotent_send", {"burst": 3, "rate": 9.0})),
        (None, ["burst=4"], None, FILE, ("idempotent_send", {"burst": "4", "rate": 9.0})),
        ("append_read", [], None, FILE, ("append_read", {})),
        (None, [], None, Schedule(seed=1, duration_us=0), ("append_read", {})),
    ],
)
def test_the_workload_is_the_schedules_unless_another_is_named(
    name: str | None,
    given: list[str],
    rate: float | None,
    schedule: Schedule | None,
    expected: tuple[str, dict[str, object]],
) -> None:
    assert _workload(name, given, rate, schedule) == expected


def test_the_duration_is_the_schedules_unless_one_is_given() -> None:
    assert _duration_s(None, None) == 60.0
    assert _duration_s(None, FILE) == 7.0
    assert _duration_s("30s", FILE) == 30.0
