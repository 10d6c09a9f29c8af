"""Each case of `python -m benchmarks.instructions` runs, and its requests are answered."""

from benchmarks import instructions


def test_every_case_runs_without_valgrind() -> None:
    cases = [*instructions.CASES.values()]
    assert [*instructions.instructions(cases, tool=())] == [(case, 0) for case in cases]
