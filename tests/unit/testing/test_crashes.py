"""A program that is killed before its steps: the place of the crash, and ends of other kinds."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from quorumlog.cluster.waits import TookTooLong
from quorumlog.testing import Crash, ProgramFailed, killed_at

STARTED = re.compile(r"kill -9 (before|after) test_crashes\.py:\d+ `(.*)`")


def append(file: Path, text: str) -> None:
    with file.open("a") as out:
        out.write(text)


def write_twice(file: Path) -> None:
    for letter in "ab":
        append(file, letter)


@contextmanager
def bracketed(file: Path) -> Iterator[None]:
    append(file, "(")
    try:
        yield
    finally:
        append(file, ")")


def write_in_brackets(file: Path) -> None:
    with bracketed(file):
        append(file, "a")


def fail(file: Path) -> None:
    raise ValueError(f"no more room in {file.name}")


def end_at_once(file: Path) -> None:
    os._exit(3)


def wait_for_ever(file: Path) -> None:
    os.read(os.pipe()[0], 1)


def test_the_process_dies_before_each_step_until_the_function_returns(tmp_path: Path) -> None:
    seen = []
    for step in count(1):
        file = tmp_path / str(step)
        crash = killed_at(step, write_twice, file, within=[write_twice])
        written = file.read_text() if file.exists() else ""
        if crash is None:
            assert written == "ab"
            break
        place = STARTED.fullmatch(str(crash))
        assert place is not None
        assert crash.step == step
        seen.append((place[1], place[2], written))
    loop, call = 'for letter in "ab":', "append(file, letter)"
    assert seen == [
        ("before", loop, ""),
        ("before", call, ""),
        ("before", loop, "a"),
        ("before", call, "a"),
        ("before", loop, "ab"),
        ("after", loop, "ab"),
    ]


def test_no_finally_runs_and_only_the_named_functions_count(tmp_path: Path) -> None:
    crash = killed_at(3, write_in_brackets, tmp_path / "out", within=[write_in_brackets])
    assert isinstance(crash, Crash)
    assert (tmp_path / "out").read_text() == "(a"
    inner = killed_at(1, write_in_brackets, tmp_path / "in", within=[bracketed])
    assert inner is not None
    assert 'append(file, "(")' in str(inner)
    assert not (tmp_path / "in").exists()


def test_an_error_of_the_program_is_raised_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match=r"(?s)fail failed .*no more room in out"):
        killed_at(9, fail, tmp_path / "out", within=[fail])
    with pytest.raises(ProgramFailed, match="ended with status 3"):
        killed_at(9, end_at_once, tmp_path, within=[end_at_once])


def test_a_program_that_waits_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TookTooLong, match="neither returned nor reached step 9"):
        killed_at(9, wait_for_ever, tmp_path, within=[wait_for_ever], timeout_s=0.1)


def test_a_function_without_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="within: <built-in function len> is no function"):
        killed_at(1, fail, tmp_path, within=[len])


def test_a_step_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the first step is 1, not 0"):
        killed_at(0, fail, tmp_path, within=[fail])
