"""Each case of `python -m benchmarks.instructions` runs, and its requests are answered."""

import pytest

from benchmarks import instructions
from benchmarks.counted import Case


@pytest.mark.parametrize("case", instructions.CASES.values(), ids=lambda case: case.name)
def test_a_case_runs_without_valgrind(case: Case) -> None:
    assert instructions._instructions(case, 1, tool=()) == 0  # raises if a step fails
