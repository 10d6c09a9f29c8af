"""The native lane, on and off: tests of its functions run with each."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from quorumlog.native import lane


def _compiled() -> Any:
    try:
        return import_module("quorumlog.native._lane")
    except ImportError:
        return None


COMPILED = _compiled()
needs_native = pytest.mark.skipif(COMPILED is None, reason="the native lane is not compiled")
LANES = [pytest.param(False, id="python"), pytest.param(True, id="native", marks=needs_native)]


@contextmanager
def native(*, is_on: bool) -> Iterator[Any]:
    """Use the lane, or Python alone, meanwhile."""
    before, lane.functions = lane.functions, COMPILED if is_on else None
    try:
        yield lane.functions
    finally:
        lane.functions = before


@pytest.fixture(params=LANES, scope="module")
def each_lane(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run all tests of a module with the lane, and without."""
    with native(is_on=request.param):
        yield
