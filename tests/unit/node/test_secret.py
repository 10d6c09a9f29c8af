"""The shared secret is read from a file; what is no secret is refused and not shown."""

import logging
from pathlib import Path

import pytest

from quorumlog.node.errors import StartFailed
from quorumlog.node.node import read_secret


def test_without_a_file_there_is_no_secret() -> None:
    assert read_secret(None) is None


def test_a_secret_is_what_the_file_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        assert read_secret(path) == "0123456789abcdef"
        assert not caplog.records
        path.chmod(0o644)
        read_secret(path)
    assert "other users can read the secret" in caplog.text
    assert "0123456789abcdef" not in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"short", b"0123456789 abcdef", b"\xff" * 20, b"a" * 1025]
)
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(StartFailed, match="must hold 16 to 1024 printable") as refused:
        read_secret(path)
    assert not content or content.decode(errors="replace") not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"control.shared.secret.file=.*/secret: No such file"):
        read_secret(tmp_path / "secret")
