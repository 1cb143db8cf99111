"""The desired state of a cluster, in one SQLite file that its controllers share."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple

from peelsum.control.description import AnyDescription
from peelsum.control.errors import ControlError

#: Of the file's tables; stored in it as `user_version`.
_VERSION = 2
#: How long to wait for the other controller's transaction.
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
    """The controller is not the cluster's primary."""

    def __init__(self, primary: str) -> None:
        where = f"ask the primary, at {primary}" if primary else "there is no primary yet; try again"
        super().__init__(f"controller: is a backup; {where}")


class StoredJob(NamedTuple):
    """A job as it was last admitted."""

    job_id: int
    """Number of the job."""
    admitted: bool
    """Whether it has not been evicted since."""
    generation: int
    """Its last generation, which no later one may repeat."""
    description: str | AnyDescription
    """Its description, in a file as TOML."""
    token: str
    """SHA-256 of the token that changes need, in hexadecimal; empty without one."""
    secret: str
    """What its hosts prove at ports that are UDP sockets, in hexadecimal."""


class Leader(NamedTuple):
    """The cluster's primary."""

    epoch: int
    """How often the primary has changed; its election id."""
    address: str
    """Where it answers, host:port; empty if it has ended by itself."""


class MemoryStore:
    """The desired state of a controller without a file. Its only epoch is 1."""

    def __init__(self) -> None:
        self._jobs: dict[int, StoredJob] = {}

    def leader(self) -> Leader:
        """Return the controller itself."""
        return Leader(1, "")

    def jobs(self) -> list[StoredJob]:
        """Return the admitted jobs, by number."""
        return [job for _, job in sorted(self._jobs.items()) if job.admitted]

    def job(self, job_id: int) -> StoredJob | None:
        """Return a job, also one that was evicted; None if it was never admitted."""
        return self._jobs.get(job_id)

    def admit(self, epoch: int, job: StoredJob) -> None:
        """Store a job that its switches have."""
        self._jobs[job.job_id] = job

    def evict(self, epoch: int, job_id: int) -> None:
        """Store that a job is evicted. Its generation is kept."""
        self._jobs[job_id] = self._jobs[job_id]._replace(admitted=False)


class Store:
    """The file, as a context manager. Threads may share it.

    Every change is a transaction on disk before the method returns. A controller passes the epoch in which it
    became the primary; in a later epoch its changes raise BackupError and do nothing.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, and make it if it is missing. Raises StoreError."""
        self._path, self._lock = path, RLock()
        self._inode: tuple[int, int] | None = None
        with self._reported():
            with suppress(OSError):  # SQLite's own error is better
                path.touch(mode=0o600)  # it has the jobs' secrets
            self._file = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            with self._reported():
                self._prepare()
            self._inode = _inode(path)
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
        with self._reported():
            return Leader(*self._file.execute("SELECT epoch, address FROM leader").fetchone())

    def take_over(self, address: str, switches: Sequence[tuple[str, int]]) -> int:
        """Begin a new epoch with the controller at `address` as primary; return the epoch."""
        with self._reported(), self._transaction():
            self._file.execute("UPDATE leader SET epoch = epoch + 1, address = ?", (address,))
            self._file.execute("DELETE FROM switches")
            rows = [(place, str(device_id)) for place, device_id in switches]
            self._file.executemany("INSERT INTO switches VALUES (?, ?)", rows)
            (epoch,) = self._file.execute("SELECT epoch FROM leader").fetchone()
        return int(epoch)

    def resign(self, epoch: int) -> None:
        """Note that the primary of an epoch ends; a backup need not wait. Raises BackupError."""
        with self._change(epoch):
            self._file.execute("UPDATE leader SET address = ''")

    def switches(self) -> set[tuple[str, int]]:
        """Return address and device_id of the switches that the last primary was given."""
        with self._reported():
            rows = self._file.execute("SELECT p4runtime, device_id FROM switches").fetchall()
        return {(place, int(device_id)) for place, device_id in rows}

    def jobs(self) -> list[StoredJob]:
        """Return the admitted jobs, by number."""
        return self._jobs("WHERE admitted ORDER BY job_id")

    def job(self, job_id: int) -> StoredJob | None:
        """Return a job, also one that was evicted; None if it was never admitted."""
        return next(iter(self._jobs("WHERE job_id = ?", job_id)), None)

    def admit(self, epoch: int, job: StoredJob) -> None:
        """Store a job that its switches have. Raises BackupError."""
        with self._change(epoch):
            self._file.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", job)

    def evict(self, epoch: int, job_id: int) -> None:
        """Store that a job is evicted. Its generation is kept, and its token dropped. Raises BackupError."""
        with self._change(epoch):
            self._file.execute("UPDATE jobs SET admitted = 0, token = '' WHERE job_id = ?", (job_id,))

    def _jobs(self, which: str, *values: int) -> list[StoredJob]:
        with self._reported():
            found = self._file.execute(f"SELECT * FROM jobs {which}", values).fetchall()
        return [StoredJob(row[0], bool(row[1]), *row[2:]) for row in found]

    def _prepare(self) -> None:
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
        with self._reported(), self._transaction():
            leader = Leader(*self._file.execute("SELECT epoch, address FROM leader").fetchone())
            if leader.epoch != epoch:
                raise BackupError(leader.address)
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:  # after some errors, as of a full disk, SQLite has rolled back
                    self._file.execute("ROLLBACK")
                raise

    @contextmanager
    def _reported(self) -> Iterator[None]:
        with self._lock:
            # SQLite would go on with a file that no longer has a name, and lose every change at its end.
            if self._inode is not None and _inode(self._path) != self._inode:
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


def _inode(path: Path) -> tuple[int, int] | None:
    """Return a mark that tells a file from others that get its name; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
