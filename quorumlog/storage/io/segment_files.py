"""The files of one segment by name: existence, indexes, renames and removals."""

from collections.abc import Sequence
from typing import Final

from quorumlog.storage.core.aborted_transactions import SUFFIX as TRANSACTION_SUFFIX
from quorumlog.storage.core.log_index import CorruptIndex
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk, read_file, replace_file

LOOKUP_SUFFIXES: Final = (".index", ".timeindex")  # every full segment has both
INDEX_SUFFIXES: Final = (*LOOKUP_SUFFIXES, TRANSACTION_SUFFIX)
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"  # an unfinished cleaned segment: removed after a crash
SWAP_SUFFIX: Final = ".swap"  # a cleaned segment that replaces others: durable


def segment_path(directory: str, base_offset: int, suffix: str = ".log") -> str:
    """Return the path of a segment's file."""
    return f"{directory}/{base_offset:020d}{suffix}"


class SegmentFiles:
    """The names of a segment's files. Every method raises OSError."""

    __slots__ = ("_directory", "_disk", "stem")

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self.stem: Final = segment_path(directory, base_offset, "")

    def read_indexes(self, base_offset: int, settings: LogSettings, size: int) -> SegmentIndex:
        """Read both index files of a segment of `size` bytes. Raises CorruptIndex."""
        try:
            offsets = read_file(self._disk, self.stem + ".index")
            times = read_file(self._disk, self.stem + ".timeindex")
        except FileNotFoundError as error:
            raise CorruptIndex("an index file is missing") from error
        return SegmentIndex.decode(base_offset, settings, offsets=offsets, times=times, size=size)

    @property
    def has_indexes(self) -> bool:
        """Whether the files exist that every full, flushed segment has."""
        return all(self._disk.exists(self.stem + suffix) for suffix in LOOKUP_SUFFIXES)

    def write_indexes(self, index: SegmentIndex) -> None:
        """Replace both index files; this makes all names in the directory durable."""
        replace_file(self._disk, self.stem + ".index", index.offsets.encode())
        replace_file(self._disk, self.stem + ".timeindex", index.times.encode())
        self._disk.fsync_dir(self._directory)

    def drop_indexes(self) -> None:
        """Remove both index files; this makes all names in the directory durable."""
        self.unlink(LOOKUP_SUFFIXES)
        self._disk.fsync_dir(self._directory)

    def unlink(self, suffixes: Sequence[str]) -> None:
        """Remove the files with these suffixes, as far as they exist."""
        for suffix in suffixes:
            if self._disk.exists(self.stem + suffix):
                self._disk.unlink(self.stem + suffix)

    def rename_deleted(self, *, indexes: bool) -> list[str]:
        """Rename the files (the indexes only if `indexes`); return the new paths, for removal."""
        stay = [] if indexes else [self.stem + suffix for suffix in INDEX_SUFFIXES]
        paths = [self.stem + suffix for suffix in (".log", *INDEX_SUFFIXES)]
        paths = [path for path in paths if path not in stay and self._disk.exists(path)]
        for path in paths:
            self._disk.rename(path, path + DELETED_SUFFIX)
        return [*(path + DELETED_SUFFIX for path in paths), *stay]
