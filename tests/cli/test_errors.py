"""Users' mistakes: one line on stderr that says what to do, exit status 2, no traceback."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import job_text
from command_line import peelsum as run
from patience import PATIENCE_S

from peelsum.pipelines import artifacts

DEVICE_ID = "--device-id: {} is out of range; use 0 to 18446744073709551615"
PEELSUM = [sys.executable, "-m", "peelsum.cli"]
ADMISSION = {"job_id": 1, "generation": 1, "workers": 2, "lanes": 32, "window": 8, "timeout_s": 3}


def run_process(*arguments, **options):
    """Run the command in a process, as users do; the other tests call `run`, without a new process."""
    command = [*PEELSUM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options)


def refused(done):
    """Return the one line that a user error prints."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    # Progress messages come before it, where something takes seconds, as on a busy machine.
    *progress, line = done.stderr.splitlines()
    assert all(re.search(r": \d+ s\b", text) for text in progress)
    assert line.startswith("peelsum: ")
    return line.removeprefix("peelsum: ")


@pytest.fixture(scope="module")
def switch():
    """Yield a running switch, as `peelsum switch run --json` announces it."""
    command = [*PEELSUM, "switch", "run", "--ports", "3", "--p4runtime", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.readline()).keys() == {
            "ports",
            "queues",
            "lanes",
            "verdicts",
            "unsent",
        }
        assert process.wait(timeout=PATIENCE_S) == 0


@pytest.fixture
def job_toml(tmp_path, switch):
    path = tmp_path / "job.toml"
    path.write_text(job_text(1, f"127.0.0.1:{switch['grpc_port']}", ports=(1, 2), up=3))
    return path


def test_switch_that_does_not_run():
    done = run("status", "--p4runtime", "127.0.0.1:1")
    line = refused(done)
    assert re.match(r"connecting to 127\.0\.0\.1:1: [23] s\n", done.stderr)
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


def test_a_held_job_is_evicted_when_its_terminal_closes(job_toml, switch):
    command = [*PEELSUM, "job", "admit", str(job_toml), "--hold", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert json.loads(holder.stdout.readline())["workers"] == 2
        holder.send_signal(signal.SIGHUP)
        assert holder.wait(timeout=PATIENCE_S) == 0
    status = run("status", "--p4runtime", f"127.0.0.1:{switch['grpc_port']}", "--json")
    assert json.loads(status.stdout)["jobs"] == []


def test_ports_in_use():
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        udp.bind(("127.0.0.1", 0))
        address, port = f"127.0.0.1:{tcp.getsockname()[1]}", udp.getsockname()[1]
        assert address in refused(run("switch", "run", "--p4runtime", address))
        base = ("--ports", "1", "--p4runtime", "127.0.0.1:0", "--udp-base", str(port - 1))
        assert str(port) in refused(run("switch", "run", *base))


def test_stale_pipeline(tmp_path, job_toml):
    """The switch's P4 sources have changed since the pipeline was compiled."""
    copy = tmp_path / "switch"
    shutil.copytree(Path(artifacts.__file__).parents[2], copy)
    (copy / "p4" / "core" / "slot.p4").write_text("// changed\n")
    line = refused(run_process("job", "admit", str(job_toml), env={"PYTHONPATH": str(copy), "PATH": ""}))
    assert line.startswith(
        "pipeline: core/slot.p4 changed after the pipelines were compiled; run `peelsum switch compile`"
    )


NOT_JSON = "admission: is not a JSON object; give what `peelsum job admit --json` printed"


@pytest.mark.parametrize(
    ("admission", "message"),
    [
        ("{}", "admission: job_id is missing; give what `peelsum job admit --json` printed"),
        (
            "nowhere.json",
            "admission: nowhere.json: No such file or directory; give JSON or the path of a file",
        ),
        ("[1]", "admission: [1]: No such file or directory; give JSON or the path of a file"),
        *[(text, NOT_JSON) for text in ("{nonsense", "bytes", "/dev/null", "list.json")],
        (json.dumps({**ADMISSION, "generation": "1"}), "admission: generation: '1' is not an integer; "),
    ],
)
def test_invalid_admission(tmp_path, monkeypatch, admission, message):
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[]")
    Path("bytes").write_bytes(bytes(range(256)))
    assert refused(run("server", "run", "--switch", "127.0.0.1:9", "--admission", admission)).startswith(
        message
    )


LANES = "--lanes: '7' is unknown; use one of 32, 64, 128, 256, 512, 1024, 2048"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("nonsense", "No such command 'nonsense'."),
        (
            "server run --switch=localhost --admission={}",
            "--switch: localhost: give the switch port as host:port, for example 127.0.0.1:9559",
        ),
        ("demo --workers 9", "--workers: 9 is out of range; use 2 to 8"),
        ("demo --form bloom", "--form: 'bloom' is not one of 'sketch', 'compact', 'auto'"),
        ("bench allreduce --lanes=7", LANES),
        ("bench switch --lanes=7", LANES),
        ("bench switch --seconds=nan", "--seconds: nan is out of range; use 0.1 to 3600"),
        (f"status --device-id={10**22}", DEVICE_ID.format(10**22)),
        ("status --device-id=x", "--device-id: 'x' is not a whole number; give one"),
        (
            "status --p4runtime=localhost",
            "--p4runtime: localhost: give the switch as host:port, for example 127.0.0.1:9559",
        ),
        (
            "status --p4runtime=localhost:99999",
            "--p4runtime: localhost:99999: give the switch as host:port, for example 127.0.0.1:9559",
        ),
        (
            "status --p4runtime=::1:9559",
            "--p4runtime: ::1:9559: give the switch as host:port, for example [::1]:9559",
        ),
        (
            "switch run --p4runtime=::1:9559",
            "P4Runtime address: '::1:9559': give the address as host:port, for example [::1]:9559",
        ),
        ("job evict", "Missing argument 'job_id'; see `peelsum job evict --help`"),
        ("switch trace --packet=00 --port=999", "--port: '999': input should be less than or equal to 510"),
        ("job evict x", "job_id: 'x' is not a whole number; give one"),
        ("demo --loss=high", "--loss: 'high' is not a number; give one"),
        ("job evict 1 --device-id=-1", DEVICE_ID.format(-1)),
        (
            "switch run --port-rate=fast",
            "--port-rate: 'fast': is not a number; give Mbit/s, as 1000 or 1@1000",
        ),
        ("switch run --port-rate=x@1", "--port-rate: x@1: x is not a port; give a number, as 1@1000"),
        ("switch run --ports=2 --port-rate=9@10", "port rate: port 9 is not there; use one of 1, 2"),
        ("switch run --ports=2 --arrival-delay=9@1", "arrival delay: port 9 is not there; use one of 1, 2"),
        ("switch run --port-delay=-1", "delay_ms: -1 is out of range; use 0 to 60000"),
        ("simulate --workers=0", "--workers: 0 is out of range; use 1 or more"),
        ("simulate --jobs=129", "--jobs: lists 129; list at most 128"),
        (
            "simulate --racks=1 --workers=40",
            "--racks: 1: jobs.0 has 40 workers, a switch takes 32; use 2 or more",
        ),
        ("simulate nowhere.toml", "nowhere.toml: No such file or directory; give the path of a scenario"),
        ("switch run --port-rate=0", "port rate: 0 Mbit/s at port 1 is out of range; use 0.01 to 1e+06"),
        (
            "switch run --port-rate=9 --port-queue=0",
            "port queue: 0 packets are out of range; use 1 to 524287",
        ),
        ("switch run --port-queue=64", "--port-queue: 64: no port has a queue; give --port-rate too"),
        (
            "switch run --schedule=none.toml",
            "schedule: none.toml: No such file or directory; give a file that can be read",
        ),
        (
            "switch compile --tofino --out=kept --processor-port=512",
            "--processor-port: 512 is out of range; use 0 to 511",
        ),
        ("switch compile --out=kept", "--out: kept: applies to --tofino only; give that too"),
    ],
)
def test_options_out_of_range(typed, message):
    assert refused(run(*typed.split())) == message


@pytest.mark.parametrize("typed", ["switch pipeline 32 --out", "certificates make switch --certs"])
def test_a_folder_that_cannot_be_made_is_named(typed, tmp_path):
    (path := tmp_path / "file").touch()
    message = f"{path}: File exists; choose another place"
    assert refused(run(*typed.split(), str(path))) == message


ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0"}
DRAW = ["topo", "draw", "two_racks"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full: nothing that is always full")
@pytest.mark.parametrize(("arguments", "unbuffered"), [(DRAW, ""), (["--version"], "1")])
def test_output_that_is_full_is_said_in_one_line(arguments, unbuffered):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PEELSUM, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.stderr == "peelsum: stdout: No space left on device; write it elsewhere\n"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["certificates", "make", "switch"], "certs/ca-key.pem"),
        (["certificates", "token", "token"], "token"),
        (["switch", "pipeline", "32"], "peelsum_32.json"),
    ],
)
def test_files_that_cannot_be_written_are_named_and_nothing_secret_is_left(arguments, named, tmp_path):
    """No process may write a file here, as if the disk were full."""
    words = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *PEELSUM, *arguments]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stderr == f"peelsum: {named}: File too large; choose another place\n"
    assert done.returncode == 2
    assert not [path for path in tmp_path.rglob("*") if path.suffix in ("", ".pem") and path.is_file()]


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "??"),
        ("latin-1", "??"),
        ("ascii:strict", "??"),
        (":strict", "??"),  # of the locale
        ("ascii:surrogateescape", "??"),
        ("", "??"),
        ("ascii:backslashreplace", r"\u251c\u2500"),
    ],
)
def test_a_character_that_a_terminal_lacks(encoding, shown):
    done = run_process(*DRAW, env={**os.environ, **ASCII_LOCALE, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith(f"{shown} p")


@pytest.mark.parametrize(
    "ending", ["dot", pytest.param("svg", marks=pytest.mark.skipif(not shutil.which("dot"), reason="no dot"))]
)
def test_a_drawing_in_a_file_is_utf8_whatever_the_locale(ending, tmp_path):
    path = tmp_path / f"graph.{ending}"
    done = run_process("switch", "graph", "--output", str(path), env={**os.environ, **ASCII_LOCALE})
    assert (done.returncode, done.stderr) == (0, "")
    assert "\N{HORIZONTAL ELLIPSIS}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("topo draw {pipe}", "give the path of a topology"),
        ("switch trace {pipe}", "give the JSON file that p4c-bm2-ss wrote"),
        ("switch run --program {pipe}", "give the JSON file that p4c-bm2-ss wrote"),
        ("simple-switch {pipe}", "give the JSON file that p4c-bm2-ss wrote"),
        ("switch trace --entries {pipe} --packet 00", "give a file that can be read"),
        ("switch trace --pcap {pipe}", "give a file that can be read"),
        ("switch run --schedule {pipe}", "give a file that can be read"),
        ("job admit {pipe}", "give the path of a job description"),
        ("controller run --config {pipe}", "give the path of a cluster description"),
        ("simulate {pipe}", "give the path of a scenario"),
        ("server run --switch 127.0.0.1:9 --admission {pipe}", "give JSON or the path of a file"),
        ("job evict 1 --controller 127.0.0.1:9 --token {pipe}", "make one: peelsum certificates token FILE"),
        ("status --tls {folder}", "make it: peelsum certificates make ROLE"),
        ("certificates make switch --certs {folder}", "give another --certs"),
        ("trace show {folder}", "pass a trace's file"),
        ("bench train --data {pipe} --model lstm", "pass a text in the format of Penn Treebank or WikiText"),
    ],
)
def test_a_named_pipe_is_refused_wherever_a_file_is_read(command, remedy, named_pipe, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("ca.pem", "ca-key.pem", "worker-0.trace.npz"):
        (folder / name).symlink_to(named_pipe)
    message = refused(run(*command.format(pipe=named_pipe, folder=folder).split()))
    assert re.search(rf"{tmp_path}.*: is not a regular file; {re.escape(remedy)}", message), message


def test_a_reader_that_left_causes_no_message():
    with subprocess.Popen([*PEELSUM, *DRAW], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=PATIENCE_S) == 1
