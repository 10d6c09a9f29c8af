"""The file `broker-registrations`: the processes whose registrations a log directory belongs to.

A controller trusts a broker that was killed, because the system still writes its buffered data.
That is true only of the directory in which the process wrote it. So the file names the process
whose registration is in force, which reveals a directory from before that registration. It also
contains the identity of its own file, which a copy lacks: a directory restored from a copy may lack
later records. JSON, with a checksum of its own fields.

    before a process registers     the process before, and itself: either may be registered
    once its logs are open         itself
    once the directory has failed  no process: data that was not on disk may be gone

docs/decisions/0014-whole-logs.md
"""

import json
import logging
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from crc32c import crc32c

from quorumlog.storage.io.disk import Disk, read_file, replace_durably

FILE_NAME: Final = "broker-registrations"
INCARNATIONS_MAX: Final = 32
"""The most processes that may have registered and ended before their logs were open. Beyond it the
file names no process, and the directory may lack records."""
_VERSION: Final = 1
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerProcess:
    """A process of a broker. `boot_id`: of the running system; None: it cannot be read."""

    incarnation_id: str
    boot_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """`boot_id`: of the system on which all logs were last open."""

    incarnations: tuple[str, ...]
    boot_id: str | None
    inode: int
    generation: int | None = None  # older releases did not write it


class Registrations:
    """The file of one log directory. All methods wait for the disk, and raise OSError.

    Invariant: from before a registration is sent until it can no longer be in force, the file names
    its process, unless the directory may lack data that an earlier process has written.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self.incarnations: tuple[str, ...] = ()  # empty: the directory may lack records
        self.may_have_lost_power = False  # since all its logs were open
        self._disk: Final = disk
        self._path: Final = f"{directory}/{FILE_NAME}"
        self._boot_id: str | None = None
        self._process: BrokerProcess | None = None
        self._has_failed = False

    def begin(self, process: BrokerProcess) -> None:
        """Read the file, and name a process that is about to register. Durable on return.

        It may be repeated after an error, and then keeps the values read first.
        """
        if self._process is None:
            known = self._read()
            self._process = process
            if known is not None:
                self.incarnations, self._boot_id = known.incarnations, known.boot_id
            self.may_have_lost_power = process.boot_id is None or (
                known is not None and known.boot_id != process.boot_id
            )
        named = (*self.incarnations, process.incarnation_id) if self.incarnations else ()
        self._write(named if len(named) <= INCARNATIONS_MAX else ())

    def confirm(self) -> None:
        """Name this process alone: it is registered, and its logs are open."""
        if self._process is not None and not self._has_failed:
            self._boot_id = self._process.boot_id
            self._write((self._process.incarnation_id,))

    def note_failure(self) -> None:
        """Name no process from now on: data that was not on disk may be lost."""
        if self._process is not None:
            self._has_failed = True
            self._write(())

    def _read(self) -> _Content | None:
        """Return the content, without incarnations if it is a copy; None: missing or damaged."""
        try:
            content = _decoded(read_file(self._disk, self._path))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            _logger.warning(
                "%s is damaged (%s): the logs beside it may lack records", self._path, error
            )
            return None
        found = self._disk.identity(self._path)
        if content.generation is None:
            found = found._replace(generation=None)
        is_copy = (content.inode, content.generation) != found
        return replace(content, incarnations=()) if is_copy else content

    def _write(self, incarnations: tuple[str, ...]) -> None:
        size = len("".join(incarnations))
        replace_durably(self._disk, self._path, size, partial(self._replace, incarnations))

    def _replace(self, incarnations: tuple[str, ...]) -> None:
        draft = f"{self._path}.tmp"
        with closing(self._disk.open(draft, create=True)) as file:
            own = self._disk.identity(draft)._asdict()
            fields = asdict(_Content(incarnations=incarnations, boot_id=self._boot_id, **own))
            text = json.dumps({"version": _VERSION, **fields, "crc": _checksum(fields)})
            file.truncate(0)  # a draft left behind by a crash
            file.append([text.encode()])
            file.fsync()
        self._disk.rename(draft, self._path)


def _decoded(text: bytes) -> _Content:
    """Read the file. Raises ValueError, TypeError, KeyError or AttributeError if it is damaged."""
    fields = json.loads(text)
    if fields.pop("version") != _VERSION or fields.pop("crc") != _checksum(fields):
        raise ValueError("its checksum differs")
    return _Content(**{**fields, "incarnations": tuple(fields["incarnations"])})


def _checksum(fields: object) -> int:
    return crc32c(json.dumps(fields, sort_keys=True).encode())
