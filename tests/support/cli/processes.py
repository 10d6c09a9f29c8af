"""The `quorumlog` command in processes of its own, as a person and a script use it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.cli.forked_commands import run_forked

TIMEOUT_S: Final = 120


class Commands:
    """`cwd`, `env`: the working directory and the environment; without them those of the test."""

    def __init__(self, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
        self._cwd, self._env = cwd, env

    def words(self, *arguments: str) -> list[str]:
        """Return the words of a command behind `quorumlog`."""
        return [*arguments]

    def command(self, *arguments: str) -> list[str]:
        """Return a command that a test runs itself."""
        return [sys.executable, "-P", "-m", "quorumlog", *self.words(*arguments)]

    def ended(self, *arguments: str, lines: str = "") -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        env = os.environ if self._env is None else self._env
        words = self.words(*arguments)
        ended = run_forked(*words, cwd=self._cwd or Path.cwd(), env=env, lines=lines)
        assert "Traceback" not in ended.stderr, ended
        return ended

    def __call__(self, *arguments: str, status: int = 0, lines: str = "") -> str:
        """Run one command; return its stdout, or its stderr if it is to fail."""
        ended = self.ended(*arguments, lines=lines)
        assert ended.returncode == status, ended
        return ended.stderr if status else ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))
