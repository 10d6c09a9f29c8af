"""Commands in the process of a test, with and without brokers."""

from collections.abc import Iterator

import pytest

from tests.support.cli.in_process import CommandLine, Shell
from tests.support.client.fake_admin import only_cluster
from tests.support.client.opened import in_a_thread


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine("", monkeypatch, capsys)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with in_a_thread(only_cluster()) as brokers:
        brokers.fill(9)
        yield Shell(brokers, monkeypatch, capsys)
