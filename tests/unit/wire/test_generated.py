"""The generated messages: the generator's output today, all in use; they need no kio to run."""

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[3]
PACKAGE = "quorumlog.wire.codec.messages"


def test_generating_again_gives_what_is_checked_in(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; sys.path.insert(0, 'tools'); import generate_messages;"
        "generate_messages.generate(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=ROOT)
    checked_in = ROOT / PACKAGE.replace(".", "/")
    expected = {path.name: path.read_text() for path in checked_in.glob("*.py")}
    assert {path.name: path.read_text() for path in tmp_path.glob("*.py")} == expected


def test_product_code_imports_each_generated_message() -> None:
    graph = grimp.build_graph("quorumlog", cache_dir=None)
    generated = graph.find_children(PACKAGE)
    unused = {name for name in generated if not graph.find_modules_that_directly_import(name)}
    assert generated
    assert unused == set()


def test_a_message_that_product_code_imports_in_any_form_is_generated(tmp_path: Path) -> None:
    lines = (
        f"from {PACKAGE}.fetch import FetchRequest",
        f"from {PACKAGE} import APIS, vote as vote_",
        f"from {PACKAGE} import (\n    end_txn,\n    heartbeat,\n)",
        f"import {PACKAGE}.share_fetch as share",
        f"def later():\n    from {PACKAGE}.metadata import MetadataRequest",
        f"# from {PACKAGE}.produce import ProduceRequest",
        f"text = 'from {PACKAGE}.sync_group import SyncGroupRequest'",
        "import envelope",
    )
    (tmp_path / "below").mkdir()
    (tmp_path / "below/module.py").write_text("\n".join(lines))
    code = (
        "import pathlib, sys; sys.path.insert(0, 'tools'); import generate_messages;"
        "print(*sorted(generate_messages.named_messages(pathlib.Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == [
        *("end_txn", "fetch", "heartbeat", "metadata", "share_fetch", "vote")
    ]


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
