"""Errors of bytes that cannot be decoded, and of messages that cannot be encoded."""


class MalformedFrame(ValueError):
    """The bytes are not what the protocol says.

    The connection they came by cannot be trusted any more.
    """


class CorruptBatch(ValueError):
    """A record batch is not whole: size, magic, checksum, or what is inside does not fit."""


class BatchTooLarge(CorruptBatch):
    """What is inside a batch is more than the reader takes; it may be whole."""


class UnencodableMessage(ValueError):
    """A value does not fit its field: null in the wrong version, a wrong type, out of range."""
