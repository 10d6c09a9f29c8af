"""Runs pytest with our plugin, in this process or as a user would."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

NAME: Final = "quorumlog.testing.plugin"


def plugin_arguments() -> list[str]:
    """Return arguments that load the plugin in an installation older than its entry point."""
    known = {found.value for found in entry_points(group="pytest11")}
    return [] if NAME in known else ["-p", NAME]


def run_pytest(
    directory: Path, *arguments: str, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `python -m pytest` in a directory, with the packages installed here."""
    return subprocess.run(
        pytest_command(arguments),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def pytest_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "pytest", *plugin_arguments(), *arguments]
