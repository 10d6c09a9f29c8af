"""Compiles the library that breaks a node's disk and clock, and returns how to load it."""

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from quorumlog.chaos.shim.orders import Orders

_SOURCE: Final = Path(__file__).with_name("faulty_calls.c")
_COMPILERS: Final = ("cc", "gcc", "clang")
_COMPILE_TIMEOUT_S: Final = 60.0
_SEPARATORS: Final = " :"  # between the libraries of LD_PRELOAD, which has no quoting


class ShimFailed(Exception):
    """The library cannot be made. One line to act on."""


def why_not() -> str:
    """Return why this machine cannot load our library before the C library, or ""."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return "it needs Linux with glibc"
    if _compiler() is None:
        return f"it needs a C compiler: {', '.join(_COMPILERS)}"
    return ""


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, _COMPILERS)), None)


class Shim:
    """The library, and in `directory` the orders for each node. A context manager.

    Entering it compiles the library, which takes a tenth of a second. Raises ShimFailed. The
    library is in a temporary directory, because LD_PRELOAD takes no path with a space or a colon.
    """

    def __init__(self, directory: Path, roots: Mapping[int, Path]) -> None:
        """`roots`: the directory of each node, by id, whose files may be broken."""
        self._directory: Final = directory
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._roots: Final = roots
        self.orders: Final[dict[int, Orders]] = {}

    def __enter__(self) -> "Shim":
        if reason := why_not():
            raise ShimFailed(f"disks and clocks cannot be broken here: {reason}")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._scratch = tempfile.TemporaryDirectory(prefix="quorumlog-shim-")
            self._compile()
            for node_id in self._roots:
                self.orders[node_id] = Orders(self._directory / f"node-{node_id}.orders")
        except OSError as error:
            self.__exit__()
            raise ShimFailed(f"{error.filename}: {error.strerror}") from error
        except ShimFailed:
            self.__exit__()
            raise
        return self

    @property
    def _library(self) -> Path:
        if self._scratch is None:
            raise ShimFailed("the library is there only within the context")
        return Path(self._scratch.name) / "faulty_calls.so"

    def _compile(self) -> None:
        if any(separator in str(self._library) for separator in _SEPARATORS):
            raise ShimFailed(
                f"{self._library.parent}: LD_PRELOAD takes no path with a space or a colon:"
                " set TMPDIR to a directory without them"
            )
        command = [str(_compiler()), "-O1", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
        command += ["-o", str(self._library), str(_SOURCE), "-ldl"]
        try:
            done = subprocess.run(  # noqa: S603 - our own file
                command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ShimFailed(f"{command[0]} did not end in {_COMPILE_TIMEOUT_S:g} s") from error
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no error output"]
            raise ShimFailed(f"{command[0]} cannot compile {_SOURCE.name}: {said[0]}")

    def __exit__(self, *_: object) -> None:
        for orders in self.orders.values():
            orders.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def environment(self, node_id: int) -> Mapping[str, str]:
        """Return the environment variables for the process of a node."""
        return {
            "LD_PRELOAD": str(self._library),
            "QUORUMLOG_ORDERS": str(self.orders[node_id].file),
            "QUORUMLOG_ORDERS_ROOT": str(self._roots[node_id].resolve()),
        }

    def of(self, node_ids: Iterable[int]) -> Iterable[Orders]:
        """Return the orders of these nodes."""
        return [self.orders[node_id] for node_id in node_ids]
