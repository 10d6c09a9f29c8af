"""What the mark `chaos` means: its defaults, and the command that repeats it."""

from pathlib import Path

import pytest

from quorumlog.testing.marks import ChaosMark, duration_s
from quorumlog.testing.trial import directory_name

OUT = Path("out")


@pytest.mark.parametrize(
    ("given", "seconds"), [(30, 30), ("30s", 30), ("500ms", 0.5), ("2m", 120), ("1.5", 1.5)]
)
def test_durations(given: object, seconds: float) -> None:
    assert duration_s(given) == seconds


@pytest.mark.parametrize("given", ["", "s", "30h", 0, -1, True, None, float("inf"), "nan"])
def test_what_is_no_duration(given: object) -> None:
    with pytest.raises(ValueError, match="write 30, '30s', '500ms' or '2m'"):
        duration_s(given)


def test_nodes_are_killed_unless_the_mark_says_otherwise() -> None:
    assert ChaosMark().settings(OUT, 1).faults == ("kill",)
    kinds = {action.fault.name for action in ChaosMark().simulation(OUT, 5).schedule.actions}
    assert kinds == {"kill"}
    assert ChaosMark(faults=()).settings(OUT, 1).faults == ()
    assert ChaosMark(faults=()).simulation(OUT, 1).schedule.actions == ()


def test_the_seed_may_choose_the_kinds_of_faults_in_simulation() -> None:
    mark = ChaosMark(faults=None)
    kinds = [
        {action.fault.name for action in mark.simulation(OUT, seed).schedule.actions}
        for seed in range(5)
    ]
    assert len({frozenset(chosen) for chosen in kinds}) > 1
    assert mark.simulation_command(7) == (
        *("quorumlog", "simulate", "nodes", "--seed", "7", "--duration", "10s"),
    )
    with pytest.raises(ValueError, match="only with simulated=True does the seed choose"):
        mark.settings(OUT, 1)


def test_the_command_of_a_real_run_says_all_that_differs() -> None:
    assert " ".join(ChaosMark().command(7)) == (
        "quorumlog chaos run --workload append_read --fault kill --duration 10s --seed 7"
    )
    mark = ChaosMark(
        faults=(), driver="confluent", nodes=5, partitions=1, options={"rate": 9}, config={"a": "b"}
    )
    assert " ".join(mark.command(7)) == (
        "quorumlog chaos run --workload append_read --fault none --duration 10s --seed 7 "
        "--driver confluent --nodes 5 --partitions 1 --workload-option rate=9 --config a=b"
    )


def test_the_command_of_a_simulated_run_says_all_that_differs() -> None:
    assert " ".join(ChaosMark(faults=("kill",), mutant="x").simulation_command(7)) == (
        "quorumlog simulate nodes --seed 7 --duration 10s --faults kill --mutant x"
    )
    apart = ChaosMark(faults=("kill",), controllers=3, brokers=2)
    assert apart.simulation_command(7)[-4:] == ("--controllers", "3", "--brokers", "2")
    other = ChaosMark(faults=None, workload="list_offsets", options={"rate": 9}, partitions=1)
    assert " ".join(other.simulation_command(7)) == (
        "quorumlog simulate nodes --seed 7 --duration 10s --workload list_offsets --partitions 1 "
        "--workload-option rate=9"
    )


def test_a_simulated_run_has_one_driver() -> None:
    with pytest.raises(ValueError, match="simulated nodes have quorumlog's own"):
        ChaosMark(driver="confluent").simulation(OUT, 1)


def test_two_tests_have_two_directories() -> None:
    names = [
        "tests/a.py::test_x",
        "tests/a.py::test_x[1-2]",
        "tests/a.py::test_x[1/2]",
        "tests-a.py::test_x",
        "tests/a.py::test_x[" + "y" * 200 + "]",
        "tests/a.py::test_x[" + "y" * 201 + "]",
        "tests/a.py::test_x[\u00e4 b]",
        "tests/a.py::test_x[\u00e4-b]",
    ]
    directories = [directory_name(name) for name in names]
    assert len(set(directories)) == len(names)
    assert directories[0] == "tests-a.py-test_x"
    assert all(len(name) < 120 and "/" not in name for name in directories)
