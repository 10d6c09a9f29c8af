"""A virtual environment beside the tests' own, for packages as users install them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]


class Installation:
    """A virtual environment of its own, and commands of it. It needs a package index."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "venv" / "bin"
        self.run([sys.executable, "-m", "venv", str(directory / "venv")])

    def wheel(self) -> Path:
        """Build the wheel of this checkout."""
        self.pip("wheel", "--no-deps", "--wheel-dir", str(self.directory), str(ROOT))
        [wheel] = self.directory.glob("*.whl")
        return wheel

    def pip(self, command: str, *words: str) -> None:
        """Run a command of pip. Raises CalledProcessError."""
        quiet = ["--quiet", "--disable-pip-version-check"]
        self.run([str(self.bin / "pip"), command, *quiet, *words])

    def python(self, *words: str) -> str:
        """Run Python, and return what it prints. Raises CalledProcessError."""
        return self.run([str(self.bin / "python"), *words])

    def quorumlog(self, *words: str, lines: str = "") -> str:
        """Run a command of quorumlog, and return what it prints. Raises CalledProcessError."""
        return self.run([str(self.bin / "quorumlog"), *words], lines)

    def run(
        self, words: list[str], lines: str = "", directory: Path | None = None, **more: str
    ) -> str:
        """Run a command with the environment's programs first; `more` are its variables."""
        return subprocess.run(
            words,
            input=lines,
            cwd=directory or self.directory,
            env={**self.environment(), **more},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    def environment(self) -> dict[str, str]:
        """Return the variables of its commands."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**own, "PATH": f"{self.bin}{os.pathsep}{own['PATH']}"}
