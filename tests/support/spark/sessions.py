"""A Spark session, for tests of a data source or of SQL."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from quorumlog.chaos.checking.spark.context import spark_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    master: str, conf: Mapping[str, str] = MappingProxyType({})
) -> Iterator["SparkSession"]:
    """Yield the session of a context that ends with the block."""
    with spark_context(master, conf=conf, is_short=True) as context:
        from pyspark.sql import SparkSession

        yield SparkSession(context)
