"""What storage refuses, and what its callers answer with."""


class StorageError(Exception):
    """The disk refused, or holds what cannot be. Callers answer KAFKA_STORAGE_ERROR."""


class CorruptCheckpoint(StorageError):
    """A small file is not whole. The message names it and says what to do about it."""


class DamagedLog(StorageError):
    """Records are gone that were there for certain. Nothing was cut; the message says where."""


class OffsetOutOfRange(Exception):
    """A read outside [log_start_offset, log_end_offset]. Callers answer OFFSET_OUT_OF_RANGE."""


class UnexpectedOffset(Exception):
    """A follower was given batches that do not continue its log: fetch again from its end."""


class RecordsTooLarge(Exception):
    """One append that no segment can hold. Callers answer RECORD_LIST_TOO_LARGE."""
