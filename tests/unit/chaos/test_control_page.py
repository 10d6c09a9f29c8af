"""docs/control-api.md has a row for each verb."""

from pathlib import Path

import pytest

from quorumlog.chaos.control.verb import Verb
from quorumlog.chaos.control.verbs import VERBS

PAGE = Path(__file__).parents[3] / "docs/control-api.md"
BEGIN, END = "| verb | request | parameters |\n|---|---|---|\n", "\nParameters in bold"


def row_of(verb: Verb) -> str:
    parameters = [
        f"**{one.name}**" if one.required else one.name
        for one in verb.parameters
        if not one.in_path
    ]
    parameters += [verb.others] if verb.others else []
    listed = ", ".join(parameters)
    return f"| `{verb.name}`: {verb.text} | `{verb.method} {verb.path}` | {listed} |\n"


def test_the_table_of_verbs_is_the_pages(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    table = "".join(map(row_of, VERBS.values()))
    if request.config.getoption("--rewrite"):
        PAGE.write_text(f"{before}{begin}{table}{end}{after}")
        return
    assert begin
    assert rest.startswith(f"{table}{END}")
