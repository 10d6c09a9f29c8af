"""The values of `auto_offset_reset`, by which a consumer without a position begins.

`earliest`, `latest`, `none` (an error), or by duration (KIP-1106): the first record that is not
older. A duration has the ISO 8601 form of Java's Duration (PnDTnHnMn.nS: a day has 24 hours, and
there are no weeks, months and years).
"""

import re
from typing import Final, Literal

BY_DURATION: Final = "by_duration:"
_NAMES: Final[dict[str, Literal["earliest", "latest", "none"]]] = {
    "earliest": "earliest",
    "latest": "latest",
    "none": "none",
}
_ISO: Final = re.compile(
    r"P(?=[\dT])(?:(\d+)D)?"
    r"(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_DIGITS_MAX: Final = 15


def parse_offset_reset(text: str) -> Literal["earliest", "latest", "none"] | int:
    """Return the name, or the duration in ms, rounded up. Raises ValueError for anything else."""
    if text in _NAMES:
        return _NAMES[text]
    if text.startswith(BY_DURATION):
        return _duration_ms(text.removeprefix(BY_DURATION))
    raise ValueError(
        f"auto_offset_reset must be one of 'earliest', 'latest', 'none' and '{BY_DURATION}PT1H'"
        f" (any duration of ISO 8601), not {text!r}"
    )


def _duration_ms(text: str) -> int:
    found = _ISO.fullmatch(text)
    if found is None or any(len(part or "") > _DIGITS_MAX for part in found.groups()):
        raise ValueError(
            f"auto_offset_reset: {text!r} is not a duration of ISO 8601; write PT1H (an hour),"
            " P2DT12H (two and a half days) or PT0.5S"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    fraction_ns = int((found[5] or "").ljust(9, "0"))
    whole_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return whole_s * 1000 - (-fraction_ns // 1_000_000)
