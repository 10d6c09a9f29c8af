"""Texts of addresses, with brackets around the hosts of IPv6 and nowhere else."""

import re
from pathlib import Path
from typing import Final

import pytest

from quorumlog.addresses import address_text, host_and_port

SOURCE: Final = Path(__file__).parent.parent.parent / "quorumlog"
JOINED: Final = re.compile(r"host\}:\{|address\.rpartition\(\":\"\)")
OTHERS: Final = {
    "client/admin/cluster.py",  # refuses a text that is no address, with the reason
    "chaos/checking/spark/executors.py",  # Spark's own addresses
    "chaos/checking/spark/masters.py",
}


@pytest.mark.parametrize(
    ("host", "text"),
    [("localhost", "localhost:1"), ("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1")],
)
def test_an_address_is_read_as_it_is_written(host: str, text: str) -> None:
    assert address_text(host, 1) == text
    assert address_text(*host_and_port(text)) == text
    assert host_and_port(text) == (host, 1)


def test_a_host_may_come_with_its_brackets_and_a_text_without() -> None:
    assert address_text("[::1]", 1) == "[::1]:1"
    assert host_and_port("::1:9092") == ("::1", 9092)
    with pytest.raises(ValueError, match="invalid literal"):
        host_and_port("localhost")


def test_no_other_code_joins_a_host_and_a_port_or_takes_them_apart() -> None:
    """Each place of its own forgot the brackets."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name != "addresses.py" and JOINED.search(path.read_text())
    }
    assert found == OTHERS
