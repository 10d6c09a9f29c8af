"""A Spark master is looked at before a check costs time."""

import socket
from pathlib import Path

import pytest

from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.chaos.checking.spark.masters import (
    check_master,
    driver_host,
    is_here,
    is_one_process,
)
from quorumlog.chaos.checking.spark.session import in_short
from quorumlog.chaos.history import HistorySource


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2,4]", "yarn", "k8s://https://host:443"]
)
def test_these_name_a_master(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    "master", ["", "nobody", "local[x]", "spark://", "spark://host", "spark://host:0", "http://h:1"]
)
def test_these_name_none(master: str) -> None:
    with pytest.raises(ValueError, match="--master"):
        check_master(master)


def test_one_standalone_master_of_several_must_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        absent, present = bound.getsockname()[1], listener.getsockname()[1]
        check_master(f"spark://127.0.0.1:{absent},127.0.0.1:{present}")
        with pytest.raises(SparkUnavailable, match=f"127.0.0.1:{absent}: Connection refused"):
            check_master(f"spark://127.0.0.1:{absent}")


def test_an_error_of_the_jvm_is_told_without_its_stack() -> None:
    text = "\nA: first\n\tat a\nCaused by: B: second\n\tat b\nCaused by: e: third\n\t.."
    assert in_short(text) == "A: first Caused by: e: third"
    assert in_short("loading\nException in thread 'main' A: no\n\tat b") == (
        "Exception in thread 'main' A: no"
    )
    python = "A: a worker:\nTraceback (most recent call last):\n  File b\nC: no module\n\n\tat d"
    assert in_short(python) == "A: a worker: C: no module"
    assert in_short("") == ""
    assert len(in_short("x" * 10_000)) <= 500


def test_tasks_of_a_cluster_of_spark_itself_are_in_other_processes() -> None:
    masters = ("local", "local[*]", "local-cluster[1,1,1024]", "yarn")
    assert [is_one_process(master) for master in masters] == [True, True, False, False]
    assert [is_here(master) for master in masters] == [True, True, True, False]


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("local[*]", "127.0.0.1"),
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://no.such.host.invalid:7077,localhost:7077", "127.0.0.1"),
        ("spark://no.such.host.invalid:7077", None),
        ("yarn", None),
        ("k8s://https://127.0.0.1:443", None),
    ],
)
def test_executors_reach_us_where_their_route_starts(master: str, host: str | None) -> None:
    assert driver_host(master) == host


@pytest.mark.parametrize(
    ("text", "remote", "local"),
    [
        ("runs/1", False, "runs/1"),
        ("/runs/a:/b", False, "/runs/a:/b"),
        ("file:///runs/a%20b", False, "/runs/a b"),
        ("file:/runs/1", False, "/runs/1"),
        ("hdfs://host/runs/1", True, None),
        ("s3a://bucket/h.parquet", True, None),
    ],
)
def test_a_path_with_a_scheme_is_for_spark(text: str, remote: bool, local: str | None) -> None:
    source = HistorySource(text)
    assert source.is_remote is remote
    if local is not None:
        assert source.local_path == Path(local)
