"""Runs the check of a history: in this process, whole or in `parts`, or on `spark`.

All ways call the same functions of `chaos.checkers`: the choice changes the time, never the verdict
(docs/decisions/0054-checker-engines.md).
"""
