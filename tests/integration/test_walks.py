"""The walks of docs/architecture/index.md name the calls of real requests, in their order."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("walks")]
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/architecture/index.md").read_text(encoding="utf-8")
NAME = re.compile(
    r"`(?P<before>[A-Z]\w+\.\w+)`\s+in\s+`(?P<in>[\w/]+\.py)`"
    r"|`(?P<path>[\w/]+\.py)`(?:\s+\(`(?P<behind>[\w.]+)`\))?"
)
WALKS: Final = (
    "One produce request",
    "One commit of a transaction",
    "One election of a metadata leader",
    "One rebalance",
)


def steps(page: str, walk: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the (file, function) pairs of each numbered step; "" is any function of the file."""
    section = page.partition(f"\n## {walk}\n")[2].partition("\n## ")[0]
    for step in re.split(r"\n(?=\d+\. )", section)[1:]:
        text = re.split(r"\n\s*\n|\n(?=\*\*)", step)[0]
        yield [
            (whole(m["in"] or m["path"]), m["before"] or m["behind"] or "")
            for m in NAME.finditer(text)
        ]


def whole(path: str) -> str:
    return re.sub(r"^partitions/", "broker/partitions/", path)  # the page abbreviates it


def first_absent(calls: list[str], wanted: list[tuple[str, str]]) -> str:
    """Return the first of the wanted calls that does not follow the others; "": all do."""
    rest = iter(calls)
    for path, function in wanted:
        begin = f"{path}: {function}"
        if not any(call == begin or (not function and call.startswith(begin)) for call in rest):
            return begin
    return ""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    path = tmp_path_factory.mktemp("walks") / "traces.json"
    subprocess.run([sys.executable, "-m", "tests.support.walks", str(path)], cwd=ROOT, check=True)
    traced: dict[str, list[str]] = json.loads(path.read_text())
    return traced


@pytest.mark.parametrize("walk", WALKS)
def test_the_steps_of_a_walk_are_the_calls_of_a_request(
    walk: str, traces: dict[str, list[str]]
) -> None:
    named = [*steps(PAGE, walk)]
    assert len(named) >= 6
    assert all(named), "each step names a file"
    assert first_absent(traces[walk], [call for step in named for call in step]) == ""


def test_a_wrong_step_is_found(traces: dict[str, list[str]]) -> None:
    calls = traces["One commit of a transaction"]
    right = [call for step in steps(PAGE, "One commit of a transaction") for call in step]
    absent = ("broker/handlers/fetch.py", "no_such_function")
    assert first_absent(calls, [*right[:3], absent, *right[3:]]).endswith("no_such_function")
    assert first_absent(calls, right[::-1]) != ""
