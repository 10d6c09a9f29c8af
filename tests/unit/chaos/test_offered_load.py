"""The load of a run: the share that was acknowledged, and the longest silence."""

import pytest

from quorumlog.chaos.run.figures import LoadMeter, OfferedLoad


def load(offered: int, acknowledged: int) -> OfferedLoad:
    return OfferedLoad(offered=offered, acknowledged=acknowledged, silent_s=0.0)


def test_the_longest_silence_is_between_two_observations_with_news() -> None:
    meter = LoadMeter(600.0, now_s=10.0)
    for now_s, acknowledged in ((10.2, 0), (11.0, 90), (11.2, 98), (28.0, 98), (28.2, 98)):
        meter.observe(now_s, acknowledged)
    measured = meter.load()
    assert measured.silent_s == pytest.approx(17.0)
    assert (measured.offered, measured.acknowledged, measured.percent) == (10_920, 98, 0)
    assert measured.text() == (
        "the cluster acknowledged 0 % of the offered operations; "
        "the longest time without an acknowledgement was 17.0 s"
    )


@pytest.mark.parametrize(
    ("offered", "acknowledged", "percent"),
    [(1000, 999, 99), (1000, 1000, 100), (1000, 1003, 100), (0, 0, 0), (3, 1, 33)],
)
def test_nearly_all_is_not_all(offered: int, acknowledged: int, percent: int) -> None:
    assert load(offered, acknowledged).percent == percent


def test_less_than_what_is_required_is_a_doubt() -> None:
    assert load(1000, 500).doubt(50) == ""
    assert load(1000, 0).doubt(0) == ""
    assert load(1000, 499).doubt(50) == (
        "the cluster acknowledged 49 % of the offered operations, and at least 50 % are required"
    )


def test_a_load_is_read_again_and_nothing_else_is_taken_for_one() -> None:
    known = OfferedLoad(offered=10, acknowledged=9, silent_s=0.25)
    assert OfferedLoad.from_json(known.as_json()) == OfferedLoad(
        offered=10, acknowledged=9, silent_s=0.2
    )
    others: list[object] = [None, [], {}, {"offered": 1}, {**known.as_json(), "silent_s": "long"}]
    for other in others:
        assert OfferedLoad.from_json(other) is None
