"""The state diagrams in docs/ show the changes that the code allows: no more, no fewer."""

from enum import Enum
from pathlib import Path

import pytest

from tests.support.state_diagrams import redraw

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "stateDiagram" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_diagrams_of_a_page_show_the_tables(page: Path, request: pytest.FixtureRequest) -> None:
    drawn = redraw(page.read_text())
    if request.config.getoption("--rewrite"):
        page.write_text(drawn)
    assert page.read_text() == drawn


class Light(Enum):
    """A table for the tests below."""

    RED = "Red"
    GREEN = "Green"


CHANGES = {Light.RED: {Light.GREEN}, Light.GREEN: {Light.RED, Light.GREEN}}
SOURCE = f"<!-- drawn from {__name__}:CHANGES -->\n"
RIGHT = SOURCE + (
    "```mermaid\nstateDiagram-v2\n    [*] --> Red\n    Red --> Green: go\n    Green --> Red\n"
    "    Green --> Green\n```"
)


def test_a_true_diagram_keeps_its_reasons() -> None:
    assert redraw(RIGHT) == RIGHT


@pytest.mark.parametrize(
    "wrong",
    [
        RIGHT.replace("    Green --> Red\n", ""),
        RIGHT.replace("    Green --> Red\n", "    Green --> Red\n    Red --> Red: never\n"),
        RIGHT.replace("    Green --> Red\n    Green --> Green\n", "    Green --> Amber\n"),
    ],
    ids=["a change is missing", "a change is too much", "a state is unknown"],
)
def test_a_wrong_diagram_is_drawn_anew(wrong: str) -> None:
    drawn = redraw(wrong)
    assert drawn != wrong
    assert "Green --> Red\n    Green --> Green\n```" in drawn
    assert "never" not in drawn


def test_a_diagram_must_name_its_table() -> None:
    with pytest.raises(ValueError, match="names no table"):
        redraw(RIGHT.removeprefix(SOURCE))
