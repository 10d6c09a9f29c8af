"""The named choices of an administrator's arguments."""

from typing import Literal

Election = Literal["preferred", "unclean"]
"""KIP-460: elect the first assigned replica; or any live one, which may lose committed records."""
OffsetSpec = Literal["earliest", "latest", "max_timestamp"]
ResourceKind = Literal["topic", "broker", "group"]
ConfigText = str | int | float | bool
"""The value of a setting, before it is written as Kafka spells it."""
UpgradeKind = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]
"""KIP-584: a safe downgrade loses no metadata; an unsafe one may."""
