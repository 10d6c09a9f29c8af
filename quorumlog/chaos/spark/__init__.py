"""The same checkers, distributed by PySpark."""
