"""The named choices of an administrator's arguments."""

from typing import Literal

Election = Literal["preferred", "unclean"]
"""KIP-460: elect the first assigned replica; or any live replica: committed records may be lost."""
OffsetSpec = Literal["earliest", "latest", "max_timestamp"]
ResourceKind = Literal["topic", "broker", "group"]
ConfigText = str | int | float | bool
"""The value of a setting, before its conversion to Kafka's text."""
UpgradeKind = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]
"""KIP-584: a safe downgrade keeps all metadata; an unsafe downgrade may lose metadata."""
