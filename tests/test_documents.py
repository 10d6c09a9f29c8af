"""What the pages name exists: files of the code, and the pages that they link to."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`((?:[\w.<>-]+/)*[\w-]+\.(?:py|golden))`")
# Files that a page lets its reader write.
OF_THE_READER = {"queue.py", "both.py", "greedy.py", "invoices.py", "judge.py", "write.py"}
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def pages(root: Path) -> list[Path]:
    return [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]


def missing(root: Path) -> list[str]:
    """Return the files and pages that a page names and that are not there."""
    below = ("quorumlog", "tests", "benchmarks", "tools", "examples")
    files = [
        f"/{path.relative_to(root).as_posix()}"
        for directory in below
        for path in (root / directory).rglob("*.*")
    ]
    found = []
    for page in pages(root):
        text = page.read_text()
        names = [
            name for name in NAMED.findall(text) if "<" not in name and name not in OF_THE_READER
        ]
        gone = [name for name in names if not any(file.endswith(f"/{name}") for file in files)]
        gone += [link for link in LINK.findall(text) if not (page.parent / link).exists()]
        found += [f"{page.relative_to(root)}: {name}" for name in gone]
    return found


def test_what_the_pages_name_is_there() -> None:
    assert missing(ROOT) == []


def test_the_index_leads_to_every_page() -> None:
    docs = ROOT / "docs"
    linked = {(docs / link).resolve() for link in LINK.findall((docs / "index.md").read_text())}
    linked |= {
        (docs / "architecture" / link).resolve()
        for link in LINK.findall((docs / "architecture/index.md").read_text())
    }
    found = set(docs.glob("**/*.md")) - set(docs.glob("decisions/*.md"))
    assert found - linked == {docs / "index.md"}
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()


def test_what_is_missing_is_seen(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "quorumlog/core").mkdir(parents=True)
    (tmp_path / "quorumlog/core/here.py").touch()
    page = "`core/here.py` `core/gone.py` `off.py` [a](page.md) [b](no.md)"
    (tmp_path / "docs/page.md").write_text(page)
    assert missing(tmp_path) == [
        f"docs/page.md: {name}" for name in ("core/gone.py", "off.py", "no.md")
    ]
