"""Every chapter of the tutorial works as it stands, and its samples are the output."""

from pathlib import Path

import pytest

from tests.support.pages import Reader

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/operating.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
]


@pytest.mark.timeout(400)  # a chapter has up to four runs of the lab
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_sees_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        reader.follow(page.read_text())
    finally:
        reader.stop()
