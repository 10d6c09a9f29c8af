"""Fake brokers for clients without an event loop."""

from collections.abc import Iterator

import pytest

from tests.support.client.fake_cluster import FakeCluster, fake_cluster
from tests.support.client.fake_group import GroupCluster, group_cluster
from tests.support.client.opened import in_a_thread


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with in_a_thread(fake_cluster()) as cluster:
        yield cluster


@pytest.fixture
def group() -> Iterator[GroupCluster]:
    with in_a_thread(group_cluster()) as cluster:
        cluster.fill(9)
        yield cluster
