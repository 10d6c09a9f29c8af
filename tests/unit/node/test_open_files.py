"""A node raises the limit of its open files as far as the system allows."""

import logging
import resource
import subprocess
import sys

import pytest

from quorumlog.node.main import MACOS_LIMIT, raise_open_files_limit

PROGRAM = """
import resource
from quorumlog.node.main import raise_open_files_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert raise_open_files_limit() == hard
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_a_node_may_open_as_many_files_as_the_system_allows() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=30)


@pytest.mark.parametrize(
    ("limits", "refused_above", "expected"),
    [
        ((1024, 4096), 4096, 4096),
        ((4096, 4096), 4096, 4096),
        ((256, resource.RLIM_INFINITY), MACOS_LIMIT, MACOS_LIMIT),
        ((256, resource.RLIM_INFINITY), 256, 256),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 0, resource.RLIM_INFINITY),
    ],
)
def test_a_limit_that_is_refused_stays(
    limits: tuple[int, int],
    refused_above: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def set_limit(_which: int, wanted_limits: tuple[int, int]) -> None:
        wanted = wanted_limits[0]
        if wanted == resource.RLIM_INFINITY or wanted > refused_above:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    with caplog.at_level(logging.WARNING):
        assert raise_open_files_limit() == expected
