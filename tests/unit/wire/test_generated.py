"""The generated messages are what the generator gives today, and need no kio to run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_generating_again_gives_what_is_checked_in(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; sys.path.insert(0, 'tools'); import generate_messages;"
        "generate_messages.generate(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=ROOT)
    checked_in = ROOT / "quorumlog/wire/codec/messages"
    expected = {path.name: path.read_text() for path in checked_in.glob("*.py")}
    assert {path.name: path.read_text() for path in tmp_path.glob("*.py")} == expected


def test_at_run_time_there_is_no_kio() -> None:
    code = (
        "import sys; import quorumlog.wire.codec.schemas as s;"
        "s.request_class(0), s.response_class(1), s.request_class(3);"
        "import quorumlog.wire.io.connection;"
        "print([name for name in sys.modules if name.split('.')[0] == 'kio'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
