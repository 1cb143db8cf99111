"""The desired jobs of a controller: in memory, or in an SQLite file that a cluster's controllers share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from peelsum.control.description import AnyDescription
from peelsum.control.errors import ControlError

#: The version of the file's tables, which is stored as `user_version`.
_VERSION = 2
#: The time limit for the end of another controller's transaction, in seconds.
_BUSY_S = 5.0
_TABLES = """
CREATE TABLE leader (epoch INTEGER NOT NULL, address TEXT NOT NULL);
INSERT INTO leader VALUES (0, '');
CREATE TABLE switches (p4runtime TEXT NOT NULL, device_id TEXT NOT NULL, PRIMARY KEY (p4runtime, device_id));
CREATE TABLE jobs (
    job_id INTEGER PRIMARY KEY,
    admitted INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    description TEXT NOT NULL,
    token TEXT NOT NULL,
    secret TEXT NOT NULL
);
"""


class StoreError(ControlError):
    """The state file cannot be read or written."""


class BackupError(ControlError):
    """The controller is a backup. The message names the primary."""

    def __init__(self, primary: str) -> None:
        waits = "there is no primary before a switch answers; see whether the switches run, and try again"
        where = f"ask the primary, at {primary}" if primary else waits
        super().__init__(f"controller: is a backup; {where}")


class StoredJob(NamedTuple):
    """The last admission of a job."""

    job_id: int
    """The job's number."""
    admitted: bool
    """Whether the job is desired; False after an eviction."""
    generation: int
    """The last generation, which must not be used again."""
    description: str | AnyDescription
    """The job's description: TOML in a file, an object in memory."""
    token: str
    """The SHA-256 of the token that changes need, in hexadecimal; empty if there is no token."""
    secret: str
    """The secret for UDP ports, in hexadecimal."""


class Leader(NamedTuple):
    """The cluster's primary."""

    epoch: int
    """The number of changes of the primary, which is also its election id."""
    address: str
    """The primary's address, host:port; empty if it has resigned."""


class MemoryStore:
    """The store of a controller without a file, which is always the primary, in epoch 1."""

    def __init__(self) -> None:
        self._jobs: dict[int, StoredJob] = {}

    def leader(self) -> Leader:
        """Return epoch 1."""
        return Leader(1, "")

    def jobs(self) -> list[StoredJob]:
        """Return the admitted jobs, in the order of their numbers."""
        return [job for _, job in sorted(self._jobs.items()) if job.admitted]

    def job(self, job_id: int) -> StoredJob | None:
        """Return a job's last admission, even if the job was evicted; None if it was never admitted."""
        return self._jobs.get(job_id)

    def admit(self, epoch: int, job: StoredJob) -> None:
        """Store an admission."""
        self._jobs[job.job_id] = job

    def evict(self, epoch: int, job_id: int) -> None:
        """Store that a job is not desired any more. Its generation is kept."""
        self._jobs[job_id] = self._jobs[job_id]._replace(admitted=False)


class Store:
    """The desired jobs in a file, as a context manager. Threads may share it.

    Every change is committed to disk before the method returns. A controller passes the epoch in which it
    became the primary. If the file has a later epoch, the change raises BackupError and does nothing.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or create it. Raises StoreError."""
        self._path, self._lock = path, RLock()
        self._file_id: tuple[int, int] | None = None
        with self._errors_translated():
            with suppress(OSError):  # SQLite reports a better error
                path.touch(mode=0o600)  # it contains the jobs' secrets
            self._file = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
            self._file_id = _file_id(path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def leader(self) -> Leader:
        """Return the current primary."""
        with self._errors_translated():
            return Leader(*self._file.execute("SELECT epoch, address FROM leader").fetchone())

    def take_over(self, address: str, switches: Sequence[tuple[str, int]]) -> int:
        """Start a new epoch with the controller at `address` as primary; return the epoch.

        switches: address and device_id of the new primary's switches.
        """
        with self._transaction():
            self._file.execute("UPDATE leader SET epoch = epoch + 1, address = ?", (address,))
            self._file.execute("DELETE FROM switches")
            rows = [(place, str(device_id)) for place, device_id in switches]
            self._file.executemany("INSERT INTO switches VALUES (?, ?)", rows)
            (epoch,) = self._file.execute("SELECT epoch FROM leader").fetchone()
        return int(epoch)

    def resign(self, epoch: int) -> None:
        """Record that the primary of an epoch ends, so that a backup need not wait. Raises BackupError."""
        with self._change(epoch):
            self._file.execute("UPDATE leader SET address = ''")

    def switches(self) -> set[tuple[str, int]]:
        """Return address and device_id of the last primary's switches."""
        with self._errors_translated():
            rows = self._file.execute("SELECT p4runtime, device_id FROM switches").fetchall()
        return {(place, int(device_id)) for place, device_id in rows}

    def jobs(self) -> list[StoredJob]:
        """Return the admitted jobs, in the order of their numbers."""
        return self._jobs("WHERE admitted ORDER BY job_id")

    def job(self, job_id: int) -> StoredJob | None:
        """Return a job's last admission, even if the job was evicted; None if it was never admitted."""
        return next(iter(self._jobs("WHERE job_id = ?", job_id)), None)

    def admit(self, epoch: int, job: StoredJob) -> None:
        """Store an admission. Raises BackupError."""
        with self._change(epoch):
            self._file.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", job)

    def evict(self, epoch: int, job_id: int) -> None:
        """Store that a job is not desired any more, without its token. Raises BackupError."""
        with self._change(epoch):
            self._file.execute("UPDATE jobs SET admitted = 0, token = '' WHERE job_id = ?", (job_id,))

    def _jobs(self, which: str, *values: int) -> list[StoredJob]:
        with self._errors_translated():
            rows = self._file.execute(f"SELECT * FROM jobs {which}", values).fetchall()
        return [StoredJob(row[0], bool(row[1]), *row[2:]) for row in rows]

    def _prepare(self) -> None:
        """Create the tables in a new file, or check the version of an existing one."""
        with self._errors_translated():
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _TABLES.split(";\n"):
                    self._file.execute(statement)
                self._file.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                raise StoreError(
                    f"controller.state: {self._path}: has version {version}, this program writes {_VERSION}; "
                    "give another file"
                )

    @contextmanager
    def _change(self, epoch: int) -> Iterator[None]:
        """Run the body in a transaction of an epoch's primary. Raises BackupError if the epoch has ended."""
        with self._transaction():
            leader = self.leader()
            if leader.epoch != epoch:
                raise BackupError(leader.address)
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the body in a transaction, which is rolled back after an exception. Raises StoreError."""
        with self._errors_translated():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:  # after some errors, as of a full disk, SQLite has rolled back
                    self._file.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Translate errors of SQLite into StoreError, which is also raised if the file was removed."""
        with self._lock:
            # SQLite would continue with a deleted file, and all changes would be lost.
            if self._file_id is not None and _file_id(self._path) != self._file_id:
                raise StoreError(
                    f"controller.state: {self._path}: was removed or replaced while in use; start the "
                    "controller again, with the file that it should continue from"
                )
            try:
                yield
            except sqlite3.Error as error:
                raise StoreError(
                    f"controller.state: {self._path}: {error}; give a file that can be read and written"
                ) from None


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, which identify it even if it is renamed; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
