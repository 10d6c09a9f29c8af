"""The `quorumlog` command in the process of the test: a process of its own takes half a second."""

import json
import sys
from typing import Any

import pytest

from quorumlog.cli.main import main
from quorumlog.cli.output import EXIT_VALID
from quorumlog.client.core.group_protocol import encode_assignment
from tests.support.client.fake_admin import AdminCluster
from tests.support.client.fake_cluster import T


class CommandLine:
    """Runs commands that take `--bootstrap`; if that is empty, any commands."""

    def __init__(
        self, bootstrap: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.first: list[str] = []  # the words before those of each command
        self._last = ["--bootstrap", bootstrap] if bootstrap else []
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.out = self.said = ""  # stdout and stderr of the last command

    def __call__(self, *words: object, status: int = EXIT_VALID) -> str:
        """Run a command; return its stdout, or its stderr if it is to fail."""
        line = ["quorumlog", *self.first, *map(str, words), *self._last]
        self._monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as ended:
            main()
        self.out, self.said = self._capsys.readouterr()
        assert int(ended.value.code or 0) == status, (self.out, self.said)
        return self.said if status else self.out

    def json(self, *words: object, status: int = EXIT_VALID) -> Any:
        """Run a command with `--json`; return its document."""
        self(*words, "--json", status=status)
        return json.loads(self.out)


class Shell(CommandLine):
    """Runs commands against a fake cluster."""

    def __init__(
        self,
        cluster: AdminCluster,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        super().__init__(cluster.bootstrap, monkeypatch, capsys)
        self.cluster, self.offer = cluster, cluster.offer

    def group(self, state: str, *, reads: bool = False) -> None:
        """Let the coordinator describe the group so."""
        member = {
            "member_id": "m-1",
            "client_id": "app",
            "client_host": "/127.0.0.1",
            "member_assignment": encode_assignment([T]),
        }
        group = {"group_id": "g", "group_state": state, "protocol_type": "consumer"}
        reading = {"protocol_data": "range", "members": [member]} if reads else {}
        self.offer("DescribeGroups", {"groups": [{**group, **reading}]})
