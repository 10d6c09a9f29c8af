"""The `quorumlog` command in the process of the test: a process of its own takes half a second."""

import sys

import pytest

from quorumlog.cli.main import main
from quorumlog.cli.output import EXIT_VALID


class CommandLine:
    """Runs commands that take `--bootstrap`."""

    def __init__(
        self,
        bootstrap: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._bootstrap = bootstrap
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.said = ""  # stderr of the last command

    def __call__(self, *words: str, status: int = EXIT_VALID) -> str:
        """Run a command; return its stdout, or its stderr if it is to fail."""
        line = ["quorumlog", *words, "--bootstrap", self._bootstrap]
        self._monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._capsys.readouterr()
        self.said = shown.err
        assert int(ended.value.code or 0) == status, shown
        return shown.err if status else shown.out
