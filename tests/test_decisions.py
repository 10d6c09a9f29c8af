"""Decision records: deviations and links name them; each has a status and one index entry."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINES_AFTER_MAX = 3  # behind the line that begins the comment
RECORD = re.compile(r"docs/decisions/\d{4}-[a-z0-9-]+\.md")
RECORDS_MAX = 64


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


def records_of(root: Path) -> list[Path]:
    return [path for path in sorted((root / "docs/decisions").glob("*.md")) if path != index(root)]


def index(root: Path) -> Path:
    return root / "docs/decisions/README.md"


def wrong_numbers(root: Path) -> list[str]:
    """Return the records whose number is not theirs, and the links that name another record."""
    found = []
    records = records_of(root)
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


STATUS = re.compile(r"Status: (in force|replaced)\b.*\.")
ENTRY = re.compile(r"^- \[(.*)\]\((.*)\): (in force|replaced)\b", re.MULTILINE)


def wrong_entries(root: Path) -> list[str]:
    """Return the records without a status, and the differences of the index from the records."""
    found = []
    expected = []
    for record in records_of(root):
        title, *rest = record.read_text().splitlines()
        status = STATUS.fullmatch(rest[0]) if rest else None
        if status is None:
            found.append(f"{record.name} has no status line")
        else:
            expected.append((title.removeprefix("# "), record.name, status[1]))
    listed = ENTRY.findall(index(root).read_text())
    found += [f"the index lacks {entry}" for entry in expected if listed.count(entry) == 0]
    found += [f"the index repeats {entry}" for entry in expected if listed.count(entry) > 1]
    found += [f"the index names {entry}" for entry in listed if entry not in expected]
    return found


def test_the_index_lists_every_record_with_its_status() -> None:
    assert wrong_entries(ROOT) == []


def test_the_records_are_few() -> None:
    assert 0 < len(records_of(ROOT)) <= RECORDS_MAX


def test_a_wrong_entry_is_seen(tmp_path: Path) -> None:
    directory = tmp_path / "docs/decisions"
    directory.mkdir(parents=True)
    (directory / "0001-one.md").write_text("# 1. One\nStatus: in force.\n")
    (directory / "0002-two.md").write_text("# 2. Two\n\nStatus: in force.\n")
    (directory / "0003-three.md").write_text("# 3. Three\nStatus: in force.\n")
    (directory / "0004-four.md").write_text("# 4. Four\nStatus: in force; more.\n")
    index(tmp_path).write_text(
        "- [1. One](0001-one.md): in force\n- [1. One](0001-one.md): in force\n"
        "- [3. Else](0003-three.md): in force\n- [4. Four](0004-four.md): in force\n"
    )
    assert wrong_entries(tmp_path) == [
        "0002-two.md has no status line",
        "the index lacks ('3. Three', '0003-three.md', 'in force')",
        "the index repeats ('1. One', '0001-one.md', 'in force')",
        "the index names ('3. Else', '0003-three.md', 'in force')",
    ]
