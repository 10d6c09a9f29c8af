"""The numbers of the nodes in a run: how they are read from a scrape, and drawn."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from quorumlog.chaos.report.metrics_plot import metrics_plot, over_time, quantile_s
from quorumlog.chaos.run.node_metrics import METRICS_FILE, NodeMetrics, parse, read_metrics

SCRAPE = """\
# HELP kafka_server_replicamanager_underreplicatedpartitions Led, with replicas outside the ISR.
# TYPE kafka_server_replicamanager_underreplicatedpartitions gauge
kafka_server_replicamanager_underreplicatedpartitions 2
quorumlog_partition_leader_elections_total 7
kafka_consumergroup_lag_sum{consumergroup="a}b",topic="t"} 30
kafka_consumergroup_lag_sum{consumergroup="c",topic="t"} 12
quorumlog_request_seconds_bucket{request="Fetch",le="0.000064"} 5
quorumlog_request_seconds_bucket{request="Produce",le="0.000064"} 1
quorumlog_request_seconds_bucket{request="Produce",le="6.4e-05"} 1
quorumlog_request_seconds_bucket{request="Produce",le="1.048576"} 4
quorumlog_request_seconds_bucket{request="Produce",le="+Inf"} 9
"""


def line(
    seconds: float,
    node: int = 1,
    *,
    under: int = 0,
    elections: int = 0,
    lag: int = 0,
    produces: tuple[tuple[float, int], ...] = (),
) -> NodeMetrics:
    return NodeMetrics(
        time_ns=round(seconds * 1e9),
        node=node,
        under_replicated=under,
        elections=elections,
        lag=lag,
        produces=produces,
    )


def test_a_scrape_is_summed() -> None:
    assert parse(SCRAPE, time_ns=5, node=2) == NodeMetrics(
        time_ns=5,
        node=2,
        under_replicated=2,
        elections=7,
        lag=42,
        produces=((0.000064, 1), (0.000064, 1), (1.048576, 4)),
    )
    assert parse("", time_ns=0, node=1) == line(0)


def test_lines_are_read_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    written = [line(1, under=2, produces=((0.1, 3),)), line(2, 3, elections=1, lag=9)]
    text = "".join(json.dumps(asdict(one)) + "\n" for one in written)
    (tmp_path / METRICS_FILE).write_text(text + '{"time_ns": 1')
    assert read_metrics(tmp_path) == written


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"time_ns": 1, "node": 1}',
        '{"time_ns": 1, "node": 1, "under_replicated": 0, "elections": 0, "lag": 0, '
        '"produces": [[Infinity, 1]]}',
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / METRICS_FILE).write_text(text + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl:1: not a line of metrics"):
        read_metrics(tmp_path)


def test_nodes_are_summed_and_a_new_leader_counts_once() -> None:
    found = over_time(
        [
            line(0.2, 1, under=1, elections=5, lag=10),
            line(0.3, 2, under=2, elections=9, lag=1),
            line(1.2, 1, under=0, elections=8, lag=20),
            line(1.3, 2, under=4, elections=12, lag=2),
            line(2.1, 2, under=4, elections=0, lag=2),  # restarted
            line(2.9, 2, under=3, elections=1, lag=3),
        ]
    )
    assert found.under_replicated == [(0.5, 3), (1.5, 4), (2.5, 3)]
    assert found.elections == [(0.5, 0), (1.5, 3), (2.5, 1)]
    assert found.lag == [(0.5, 11), (1.5, 22), (2.5, 3)]
    assert found.p99_ms == []


def test_the_quantile_is_of_the_produces_of_a_second() -> None:
    def buckets(*counts: int) -> tuple[tuple[float, int], ...]:
        return tuple(zip((0.1, 0.2, 0.4), counts, strict=True))

    found = over_time(
        [
            line(0.5, 1, produces=buckets(50, 50, 50)),
            line(1.5, 1, produces=buckets(50, 150, 150)),
            line(2.5, 1, produces=buckets(50, 150, 150)),
            line(3.5, 1, produces=buckets(0, 0, 10)),  # restarted
        ]
    )
    ((at_s, p99_ms),) = found.p99_ms
    assert at_s == 1.5
    assert p99_ms == pytest.approx(199.0)


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({}, 0.5, None),
        ({1.0: 0}, 0.5, None),
        ({1.0: 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10}, 0.5, 1.5),
        ({1.0: 10, 2.0: 10}, 0.99, 0.99),
    ],
)
def test_quantiles_are_interpolated(
    buckets: dict[float, int], share: float, value: float | None
) -> None:
    found = quantile_s(buckets, share)
    assert found == (None if value is None else pytest.approx(value))


def test_the_plot_has_a_chart_for_each_unit() -> None:
    assert metrics_plot([], [], 10.0) == ""
    drawn = metrics_plot([line(1, under=2), line(2, under=1)], [("kill 1", 1.0, 2.0)], 3.0)
    assert drawn.count("<svg") == 3
    assert drawn.count("kill 1: 1.00 s to 2.00 s") == 3
    assert "under-replicated" in drawn
