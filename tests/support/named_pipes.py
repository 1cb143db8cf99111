"""A named pipe that no file reader should open."""

import os
from threading import Thread

import pytest


@pytest.fixture
def named_pipe(tmp_path):
    """Return the path of a named pipe. Who reads it nevertheless gets its end, and does not wait for ever."""
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    writer = Thread(target=lambda: os.close(os.open(path, os.O_WRONLY)))
    writer.start()
    yield path
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # the writer goes on if nobody has read
    writer.join()
    os.close(reader)
