"""Which partition of an internal topic a group or a transactional id lives on, as in Java."""


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    utf16 = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(utf16), 2):
        value = (31 * value + (utf16[index] << 8 | utf16[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    """Return the partition of a key. The smallest hash has no absolute value in Java: 0 there."""
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
