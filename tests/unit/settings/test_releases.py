"""The table of releases agrees with responses of brokers of these releases."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from quorumlog.broker.handlers.optional import telemetry
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.settings.releases import RELEASES, api_versions, feature_levels

KRAFT_ONLY: Final = {55, 64, 74, 75, 80, 81}  # kafka-python asked brokers with ZooKeeper until 3.9


@pytest.mark.parametrize("release", RELEASES)
def test_the_versions_are_those_that_kafka_python_has_copied_from_brokers(release: str) -> None:
    major, minor = map(int, release.split("."))
    brokers = {key: highest for key, (_, highest) in BROKER_API_VERSIONS[major, minor].items()}
    own = api_versions(release)
    skipped = KRAFT_ONLY if major < 4 else set()
    compared = HANDLERS.keys() - skipped
    assert {key: own.get(key) for key in compared} == {key: brokers.get(key) for key in compared}


def test_every_served_api_has_a_row_and_versions_only_rise() -> None:
    served = HANDLERS.keys() | telemetry.HANDLERS.keys()
    assert api_versions(RELEASES[-1]).keys() == served
    for earlier, later in pairwise(RELEASES):
        assert rises(api_versions(earlier), api_versions(later))
        assert rises(feature_levels(earlier), feature_levels(later))


def rises(before: Mapping[Any, int], after: Mapping[Any, int]) -> bool:
    return all(after.get(name, -1) >= number for name, number in before.items())


def test_features_begin_with_the_release_that_announced_them() -> None:
    assert feature_levels("3.2") == {}
    assert feature_levels("3.9") == {"metadata.version": 21, "kraft.version": 1}
    assert feature_levels("4.0")["transaction.version"] == 2
