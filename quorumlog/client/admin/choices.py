"""What an administrator may choose from, by name."""

from typing import Literal

Election = Literal["preferred", "unclean"]
"""KIP-460: to the first of the assigned replicas; or to any that lives, at the price of data."""
OffsetSpec = Literal["earliest", "latest", "max_timestamp"]
ResourceKind = Literal["topic", "broker"]
ConfigText = str | int | float | bool
"""The value of a setting, before it is written as Kafka spells it."""
