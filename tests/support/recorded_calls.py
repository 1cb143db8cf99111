"""Counts of the calls of peelsum's functions: they tell how far a reader has to go to follow them."""

import sys
import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple


class Way(NamedTuple):
    """How far a reader has to go."""

    calls: int
    files: int
    switches: int
    """How often one call is in another file than the call before it in the same thread."""

    def is_within(self, most):
        """Return whether none of the counts is larger than in `most`."""
        return all(count <= largest for count, largest in zip(self, most, strict=True))


class CallRecorder:
    """Records calls in the thread that calls `recording`, and in threads that start in the context."""

    def __init__(self):
        self._recording = threading.Event()
        #: The file of each call below the package's folder, by thread.
        self._files_by_thread = {}

    def __enter__(self):
        threading.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        threading.setprofile(None)

    @contextmanager
    def recording(self):
        """Record the calls during the body."""
        self._recording.set()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._recording.clear()

    def files(self):
        """Return the file of each call, thread by thread."""
        return [file for files in self._files_by_thread.values() for file in files]

    def way(self):
        """Return the counts of the calls."""
        pairs = [pair for files in self._files_by_thread.values() for pair in pairwise(files)]
        switches = sum(first != second for first, second in pairs)
        return Way(len(self.files()), len(set(self.files())), switches)

    def _profile(self, frame, event, argument):
        folder, _, file = frame.f_code.co_filename.rpartition("/peelsum/")
        if event == "call" and self._recording.is_set() and folder and "site-packages" not in folder:
            self._files_by_thread.setdefault(threading.get_ident(), []).append(file)
