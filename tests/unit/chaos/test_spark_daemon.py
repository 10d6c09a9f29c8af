"""The parent of Spark's Python workers ends with the JVM, also before it has its imports."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quorumlog.chaos.checking.spark.context import in_short
from quorumlog.chaos.checking.spark.daemon import ends_with_jvm

IMPORTING = """
from quorumlog.chaos.checking.spark.daemon import ends_with_jvm

with ends_with_jvm():
    print("imports", flush=True)
    while True:
        pass
"""


def test_a_daemon_ends_during_its_imports_if_the_jvm_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", IMPORTING],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        assert daemon.stdout.readline() == b"imports\n"
        daemon.stdin.close()
        try:
            assert daemon.wait(30) == 1
        finally:
            daemon.kill()


def test_no_thread_watches_the_jvm_when_workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr("quorumlog.chaos.checking.spark.daemon._STDIN", reader)
    before = threading.enumerate()
    with ends_with_jvm():
        assert [one.name for one in threading.enumerate() if one not in before] == ["stdin"]
        os.write(writer, b"of the manager")
    assert threading.enumerate() == before
    assert os.read(reader, 20) == b"of the manager"
    os.close(writer)
    os.close(reader)


def test_a_python_without_the_imports_is_told_of_by_its_error() -> None:
    said = (
        "An error occurred.\n: org.apache.spark.SparkException: \nError from python worker:\n"
        '  Traceback (most recent call last):\n    File "daemon.py", line 1, in <module>\n'
        "      import numpy\n  ModuleNotFoundError: No module named 'numpy'\n"
        "PYTHONPATH was:\n  /x\n"
    )
    assert in_short(said) == "An error occurred. ModuleNotFoundError: No module named 'numpy'"
