"""The same checkers, distributed by PySpark."""


class SparkUnavailable(Exception):
    """Spark cannot be started here, or did not finish; the message has reason and remedy."""
