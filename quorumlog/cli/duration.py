"""Durations on the command line, such as `500ms` or `2m`."""

from quorumlog.cli.output import EXIT_USAGE, fail


def parse_duration_ms(text: str) -> int:
    """Read `500ms`, `30s`, `2m` or a plain number of seconds; else end with a usage error."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "": 1000}
    number = text.rstrip("ms")
    unit = text.removeprefix(number)
    try:
        duration_ms = float(number) * units[unit]
    except (ValueError, KeyError):
        fail(f"{text!r} is not a duration; write 30s, 500ms or 2m", EXIT_USAGE)
    if duration_ms <= 0:
        fail(f"{text!r} is not a duration: it must be positive", EXIT_USAGE)
    return int(duration_ms)
