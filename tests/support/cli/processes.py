"""The `quorumlog` command in processes of its own, as a person and a script use it."""

import json
import subprocess
import sys
from typing import Any, Final

TIMEOUT_S: Final = 120


class Commands:
    """`where`: options of `subprocess.run`, such as the working directory."""

    def __init__(self, **where: Any) -> None:
        self._where = where

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "quorumlog", *arguments]

    def __call__(self, *arguments: str, status: int = 0, lines: str = "") -> str:
        """Run one command; return its stdout, or its stderr if it is to fail."""
        command = self.command(*arguments)
        ended: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            input=lines,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            **self._where,
        )
        assert ended.returncode == status, ended
        assert "Traceback" not in ended.stderr
        return ended.stderr if status else ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))
