"""Errors of bytes that cannot be decoded, and of messages that cannot be encoded."""


class MalformedFrame(ValueError):
    """The bytes violate the protocol.

    Their connection cannot be trusted any more.
    """


class OtherProtocol(MalformedFrame):
    """The first bytes of the peer are those of HTTP or TLS."""


class CorruptBatch(ValueError):
    """A record batch is corrupt: its size, magic, checksum or records."""


class BatchTooLarge(CorruptBatch):
    """The records of a batch exceed the reader's limit; the batch may be whole."""


class UnencodableMessage(ValueError):
    """A value does not fit its field: null in the wrong version, a wrong type, out of range."""
