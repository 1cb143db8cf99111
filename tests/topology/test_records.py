"""The records of `up`: its process and its network's parts; only one network runs at a time."""

import os
import subprocess
import sys

import pytest
from command_line import peelsum

from peelsum.topology import TopologyError, records
from peelsum.topology.records import MARKER, ExecContext, Process, Record

# Says so once it ignores SIGTERM, then waits for its end.
STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def record_of(network, up):
    return Record(network, up, {"h1": ExecContext(up, {"A": "b"}), "h2": ExecContext()})


def started(network, program="print('up', flush=True); import signal; signal.pause()"):
    """A process of a network that has started."""
    environment = {**os.environ, MARKER: network}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    return process


def test_a_record_is_read_as_it_was_written():
    assert Record.read() is None
    myself = Process.of(os.getpid())
    record = record_of("n", myself)
    record.write()
    assert Record.read() == record


def test_a_process_is_told_from_another_with_its_number():
    myself = Process.of(os.getpid())
    assert myself.running
    assert not Process(myself.pid, myself.started + 1).running
    process = started("n")
    child = Process.of(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, its number not free yet
    assert not child.running
    process.wait()
    assert not child.running


def test_the_end_takes_what_has_the_marker_and_nothing_else():
    gone = Process(os.getpid(), 0)  # an `up` that was killed, whose number is used again
    record = record_of("ours", gone)
    record.write()
    ours, stubborn, other = started("ours"), started("ours", STUBBORN), started("another")
    records.GRACE_S, before = 0.5, records.GRACE_S
    try:
        records.end(record)
        assert ours.wait() == -15
        assert stubborn.wait() == -9
        assert other.poll() is None
    finally:
        records.GRACE_S = before
        for process in (ours, stubborn, other):
            process.kill()
            process.wait()
    assert Record.read() is None


#: Cut short, of no kind that a record is, and of versions that had less or something else.
UNREADABLE = ["", "{", "{}", "[]", "7", "\xff", '{"network": "n"}', '{"network": 1, "up": {"pid": "x"}}']


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_file_that_is_not_a_record_is_named_with_a_remedy(text):
    records.file().write_text(text, encoding="latin-1")
    with pytest.raises(TopologyError, match=r"^/.*network\.json: is not a record .*, and remove it$"):
        Record.read()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("up", "star"), "No such file or directory"),
        (("up", "star"), "Not a directory"),
        (("exec", "h1", "true"), "Not a directory"),
        (("down",), "Not a directory"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_in_one_line(tmp_path, monkeypatch, arguments, reason):
    (tmp_path / "file").touch()
    runtime = "/proc" if reason.startswith("No such") else str(tmp_path / "file")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    done = peelsum(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    said = f"{runtime}/peelsum: {reason}; set XDG_RUNTIME_DIR to a folder of yours"
    assert done.stderr == f"peelsum: {said}\n"


def test_one_network_at_a_time():
    program = "from peelsum.topology.records import network_lock\nwith network_lock(): print('got it')"
    command = [sys.executable, "-c", program]
    with records.network_lock():
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "another network is up; end it with `peelsum down`" in refused.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "got it\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_is_refused(tmp_path):
    (tmp_path / "peelsum").mkdir()
    os.chown(tmp_path / "peelsum", 12345, 12345)
    with pytest.raises(TopologyError, match="belongs to another user; set XDG_RUNTIME_DIR"):
        Record.read()


def test_the_folder_is_ours_alone(tmp_path, monkeypatch):
    assert records.folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "peelsum").symlink_to(tmp_path / "peelsum")  # who may swap it later?
    with pytest.raises(TopologyError, match="belongs to another user; set XDG_RUNTIME_DIR"):
        records.folder()


def test_an_up_that_ends_its_network_does_not_end_itself():
    program = (
        "import os\nfrom peelsum.topology import records\n"
        "from peelsum.topology.records import Process, Record\n"
        "records.end(Record('n', Process.of(os.getpid())))\nprint('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr
