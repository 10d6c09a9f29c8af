"""The command that installs what is missing works for the way quorumlog was installed."""

from importlib.metadata import PackageNotFoundError

import pytest

from quorumlog import extras


class Installed:
    def __init__(self, direct_url: str | None) -> None:
        self._direct_url = direct_url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._direct_url


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'quorumlog[chaos]'"),  # from an index
        (
            '{"url": "file:///home/me/my%20quorumlog", "dir_info": {}}',
            "pip install '/home/me/my quorumlog[chaos]'",
        ),
        ('{"url": "https://host/quorumlog.whl"}', "pip install 'quorumlog[chaos]'"),
        ("not JSON", "pip install 'quorumlog[chaos]'"),
    ],
)
def test_the_directory_that_it_came_from_is_named(
    direct_url: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Installed(direct_url))
    assert extras.install_command("chaos") == command


def test_without_metadata_the_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", absent)
    assert extras.install_command("spark") == "pip install 'quorumlog[spark]'"
