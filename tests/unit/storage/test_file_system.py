"""A whole file system is made durable by one call, where the system tells of its errors."""

import errno
import os
import sys
from pathlib import Path

import pytest

from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.file_system import RealFileSystem

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="syncfs is Linux's")


@linux_only
def test_the_file_system_of_a_directory_is_made_durable(tmp_path: Path) -> None:
    opened = RealDisk().open_file_system(str(tmp_path))
    if opened is None:
        pytest.skip("this Linux does not tell of lost writes")
    (tmp_path / "file").write_text("content")
    opened.sync()
    opened.close()
    opened.close()  # twice is once
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        opened.sync()


@pytest.mark.parametrize("release", ["5.7.19-generic", "4.19", "unknown"])
def test_a_system_that_does_not_tell_of_lost_writes_is_not_asked(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = os.uname()
    told = os.uname_result((uname.sysname, uname.nodename, release, uname.version, uname.machine))
    monkeypatch.setattr(os, "uname", lambda: told)
    assert RealFileSystem.open(str(tmp_path)) is None
