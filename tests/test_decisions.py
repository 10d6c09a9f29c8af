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
