"""The native lane under sanitizers of the compiler: it uses only the bytes that it is given."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/property/test_native_lane.py",
    "tests/property/test_request_runs.py",
    "tests/property/test_storage_log.py",
    "tests/property/test_wire_record_fields.py",
)
RUN = """
import importlib.util, sys
import pytest
spec = importlib.util.spec_from_file_location("quorumlog.native._lane", sys.argv[1])
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick", "-k", "the_lane"]
sys.exit(pytest.main([*options, *sys.argv[2:]]))
"""


def checked_library(directory: Path) -> tuple[Path, str]:
    """Compile the lane with sanitizers; return its path and that of their library."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler with sanitizers to preload")
    named = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(named).is_absolute():
        pytest.skip(f"{compiler} has no AddressSanitizer")
    library = directory / "_lane.abi3.so"
    sources = sorted(map(str, (ROOT / "quorumlog/native").glob("*.c")))
    options = [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-DPy_LIMITED_API=0x030B0000",
    ]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    include = f"-I{sysconfig.get_path('include')}"
    words = [compiler, "-shared", "-fPIC", "-O1", "-g", *options, *warnings, include, *sources]
    subprocess.run([*words, "-o", str(library)], check=True)
    return library, named


def test_the_lane_reads_and_writes_only_the_bytes_that_it_is_given(tmp_path: Path) -> None:
    library, sanitizer = checked_library(tmp_path)
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",  # each buffer has its own bounds
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(library), *TESTS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " skipped" not in done.stdout
