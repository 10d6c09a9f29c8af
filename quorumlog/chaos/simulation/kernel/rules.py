"""Violations: a rule of a simulated world does not hold."""


class Violation(Exception):
    """A rule of the whole system does not hold. The first word names the rule."""


def check(holds: bool, rule: str) -> None:
    """Raise Violation unless the rule holds. `rule` is "name: observation"."""
    if not holds:
        raise Violation(rule)
