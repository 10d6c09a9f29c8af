"""A deviation from Kafka names the record that says why: `# DEVIATION:`, and docs/decisions."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINES_AFTER_MAX = 3  # behind the line that begins the comment
RECORD = re.compile(r"docs/decisions/\d{4}-[a-z0-9-]+\.md")


def unexplained(root: Path) -> list[str]:
    found = []
    for path in sorted(root.glob("quorumlog/**/*.py")):
        lines = path.read_text().splitlines()
        for place, line in enumerate(lines):
            if "DEVIATION:" not in line:
                continue
            names = RECORD.findall("\n".join(lines[place : place + 1 + LINES_AFTER_MAX]))
            if not names or not all((root / name).is_file() for name in names):
                found.append(f"{path.relative_to(root).as_posix()}:{place + 1}")
    return found


def test_every_deviation_names_its_record() -> None:
    assert unexplained(ROOT) == []


def test_what_is_planted_is_seen(tmp_path: Path) -> None:
    record = tmp_path / "docs/decisions/0001-there.md"
    planted = tmp_path / "quorumlog/planted.py"
    for path in (record, planted):
        path.parent.mkdir(parents=True)
    record.write_text("# 1. There\n")
    planted.write_text(
        "# DEVIATION: explained.\n# docs/decisions/0001-there.md\n\n\n"
        "# DEVIATION: no record.\n\n\n\n"
        "# DEVIATION: no such record.\n# docs/decisions/0002-absent.md\n\n\n"
        "# DEVIATION: too far away.\n\n\n\n# docs/decisions/0001-there.md\n"
    )
    assert unexplained(tmp_path) == [f"quorumlog/planted.py:{line}" for line in (5, 9, 13)]


LINK = re.compile(r"\[decision\s+(\d+)\]\(\S*?(\d{4})-([a-z0-9-]+)\.md\)")


def wrong_numbers(root: Path) -> list[str]:
    """Return the records whose number is not theirs, and the links that name another record."""
    found = []
    records = sorted((root / "docs/decisions").glob("*.md"))
    for place, record in enumerate(records, start=1):
        if not record.name.startswith(f"{place:04}-"):
            found.append(f"{record.name} is number {place}")
        if not record.read_text().startswith(f"# {int(record.name[:4])}. "):
            found.append(f"{record.name}: its title has another number")
    names = {record.stem for record in records}
    for page in sorted([*root.glob("docs/**/*.md"), *root.glob("*.md")]):
        for shown, number, title in LINK.findall(page.read_text()):
            if int(shown) != int(number) or f"{number}-{title}" not in names:
                found.append(f"{page.name}: decision {shown} is {number}-{title}")
    return found


def test_records_are_numbered_and_links_name_them() -> None:
    assert wrong_numbers(ROOT) == []


def test_a_wrong_number_is_seen(tmp_path: Path) -> None:
    directory = tmp_path / "docs/decisions"
    directory.mkdir(parents=True)
    (directory / "0001-one.md").write_text("# 1. One\n\n[decision 2](0001-one.md)\n")
    (directory / "0003-three.md").write_text("# 4. Three\n\n[decision\n1](0001-none.md)\n")
    assert wrong_numbers(tmp_path) == [
        "0003-three.md is number 2",
        "0003-three.md: its title has another number",
        "0001-one.md: decision 2 is 0001-one",
        "0003-three.md: decision 1 is 0001-none",
    ]
