"""What users get wrong: one line on stderr that says what to do, exit status 2, no traceback."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from peelsum.target import artifacts

PEELSUM = [sys.executable, "-m", "peelsum.cli"]
JOB = """\
[job]
id = 1
workers = 2

[switch]
p4runtime = "{p4runtime}"

[ports]
workers = [1, 2]
server = 3
"""


def run(*arguments, **options):
    return subprocess.run(
        [*PEELSUM, *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


def refused(done):
    """The one line that a user error prints."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("peelsum: ")
    return line.removeprefix("peelsum: ")


@pytest.fixture
def taken():
    """The port of a TCP socket and of a UDP socket that somebody else holds."""
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        udp.bind(("127.0.0.1", 0))
        yield tcp.getsockname()[1], udp.getsockname()[1]


@pytest.fixture(scope="module")
def switch():
    """A running switch, as `peelsum switch run --json` announces it."""
    command = [*PEELSUM, "switch", "run", "--ports", "3", "--p4runtime", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.readline()).keys() == {"ports"}
        assert process.wait(timeout=30) == 0


@pytest.fixture
def job_toml(tmp_path, switch):
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(p4runtime=f"127.0.0.1:{switch['grpc_port']}"))
    return path


def test_unknown_command():
    assert refused(run("nonsense")) == "No such command 'nonsense'."


def test_description_that_is_not_there():
    assert refused(run("job", "admit", "nowhere.toml")).startswith(
        "nowhere.toml: No such file or directory; "
    )


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("workers = 2", "workers = 200", "job.workers: 200: "),
        ("workers = 2", "wokers = 2", "job.workers: is missing"),
        ("id = 1", "id = 'one'", "job.id: 'one': "),
        ("[1, 2]", "[1, 1]", "ports: 1: is used 2 times; give every participant its own port"),
        ("[job]", "[job", "is not TOML"),
    ],
)
def test_description_that_is_wrong(job_toml, before, after, complaint):
    job_toml.write_text(job_toml.read_text().replace(before, after))
    line = refused(run("job", "admit", str(job_toml)))
    assert line.startswith(f"{job_toml}: {complaint}")


def test_switch_that_does_not_run():
    line = refused(run("status", "--p4runtime", "127.0.0.1:1"))
    assert "127.0.0.1:1; is `peelsum switch run` running there?" in line


def test_unknown_job(job_toml, switch):
    address = f"127.0.0.1:{switch['grpc_port']}"
    admitted = run("job", "admit", str(job_toml), "--json")
    assert json.loads(admitted.stdout)["workers"] == 2
    assert refused(run("job", "evict", "9", "--p4runtime", address)) == "job: 9: is not admitted; admitted: 1"
    assert [
        job["job_id"] for job in json.loads(run("status", "--p4runtime", address, "--json").stdout)["jobs"]
    ] == [1]
    assert run("job", "evict", "1", "--p4runtime", address).returncode == 0
    assert json.loads(run("status", "--p4runtime", address, "--json").stdout)["jobs"] == []


def test_p4runtime_port_in_use(taken):
    line = refused(run("switch", "run", "--p4runtime", f"127.0.0.1:{taken[0]}"))
    assert f"127.0.0.1:{taken[0]}" in line


def test_udp_port_in_use(taken):
    line = refused(
        run("switch", "run", "--ports", "1", "--p4runtime", "127.0.0.1:0", "--udp-base", str(taken[1] - 1))
    )
    assert str(taken[1]) in line


def test_stale_pipeline(tmp_path, job_toml):
    """A copy of the switch's folder whose P4 has changed since it was compiled."""
    copy = tmp_path / "switch"
    shutil.copytree(Path(artifacts.__file__).parents[2], copy)
    (copy / "p4" / "core" / "slot.p4").write_text("// changed\n")
    line = refused(run("job", "admit", str(job_toml), env={"PYTHONPATH": str(copy), "PATH": ""}))
    assert line.startswith(
        "pipeline: core/slot.p4 changed after the pipelines were compiled; run `peelsum switch compile`"
    )


@pytest.mark.parametrize(
    ("admission", "complaint"),
    [
        ("{}", "admission: generation is missing; give what `peelsum job admit --json` printed"),
        (
            "nowhere.json",
            "admission: nowhere.json: No such file or directory; give JSON or the path of a file",
        ),
        ("{nonsense", "admission: is no JSON object; give what `peelsum job admit --json` printed"),
    ],
)
def test_admission_that_is_none(admission, complaint):
    assert refused(run("server", "run", "--switch", "127.0.0.1:9", "--admission", admission)) == complaint


def test_switch_address_that_is_none():
    line = refused(run("server", "run", "--switch", "localhost", "--admission", "{}"))
    assert line == "localhost: give the switch port as host:port, for example 127.0.0.1:9559"


@pytest.mark.parametrize("size", ["1Q", "0", "-5"])
def test_size_that_is_none(size):
    assert refused(run("bench", "allreduce", f"-b={size}")).startswith("-b: ")
