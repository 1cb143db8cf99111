"""`peelsum simple-switch` takes the options of simple_switch_grpc as its users write them."""

import signal
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from command_line import peelsum
from finsy.proto import p4r, p4r_grpc
from free_ports import KeptPort
from patience import PATIENCE_S

from peelsum.cli import simple_switch
from peelsum.pipelines import pipeline

START = "from peelsum.cli.main import simple_switch_grpc as run; run()"


@pytest.fixture
def translate(monkeypatch):
    """Return a function that gives the softswitch's settings of a command line, and what is on stderr."""
    runs = []
    monkeypatch.setattr(simple_switch, "run_softswitch", lambda settings, service: runs.append(settings))
    monkeypatch.setattr(simple_switch.BMv2Options, "configure_logs", lambda options: None)

    def translate(line):
        done = peelsum("simple-switch", *line.split())
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return runs.pop(), done.stderr

    return translate


def test_the_options_of_p4langs_tutorials(translate):
    settings, notes = translate(
        "-i 1@s1-eth1 -i 0@s1-eth2 --pcap /pcaps --nanolog ipc:///tmp/bm-3-log.ipc --device-id 3 "
        "build/calc.json --log-console -- --grpc-server-addr 0.0.0.0:50051 --cpu-port 510"
    )
    assert settings.interfaces == {1: "s1-eth1", 0: "s1-eth2"}
    assert (settings.capture, settings.device_id, settings.cpu_port) == (Path("/pcaps"), 3, 510)
    assert (settings.p4runtime, settings.program) == ("0.0.0.0:50051", Path("build/calc.json"))
    assert (settings.as_bmv2, notes) == (True, "")


def test_bmv2s_defaults(translate):
    settings, notes = translate("--no-p4")
    assert (settings.p4runtime, settings.device_id, settings.program) == ("127.0.0.1:9559", 0, None)
    assert (settings.capture, settings.interfaces, notes) == (None, {}, "")


def test_help_and_version():
    assert "--grpc-server-addr" in peelsum("simple-switch", "-h").stdout
    for name in ("-v", "--version"):
        assert peelsum("simple-switch", name).stdout == f"peelsum {version('peelsum')}\n"


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("--pcap --no-p4", "."),
        ("--no-p4 --pcap", "."),
        ("--pcap=x --no-p4", "x"),
        ("--pcap x --no-p4", "x"),
        ("--pcap a.json", "."),
    ],
)
def test_captures_need_no_folder(translate, line, folder):
    assert translate(line)[0].capture == Path(folder)


def test_what_is_without_effect_is_said_once_if_a_user_would_miss_it(translate):
    line = "--debugger --no-p4 --log-flush --max-port-count=9 -- --priority-queues 8 --disable-swap"
    _, notes = translate(line)
    assert sorted(note.split(":")[1] for note in notes.splitlines()) == [" --debugger", " --priority-queues"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--no-p4 --use-files 1", "No such option: --use-files"),
        ("", "the program is missing; give its JSON file, or --no-p4"),
        ("--no-p4 -i s1-eth1", "--interface: s1-eth1: give PORT@VALUE, for example 1@eth0"),
        ("--no-p4 --drop-port 5", "--drop-port: 5 is out of range; use 511"),
        (
            "--no-p4 -i 9@s1-eth1 -- --cpu-port 9",
            "--cpu-port: 9: is a port of the switch; choose another number",
        ),
        ("--no-p4 --log-console --log-file x", "--log-file: x: excludes --log-console; give one of them"),
        ("--no-p4 --log-file /nowhere/x", "--log-file: /nowhere/x: No such file or directory"),
    ],
)
def test_errors_name_the_option(line, message):
    done = peelsum("simple-switch", *line.split(), "--grpc-server-addr=127.0.0.1:0")
    assert done.returncode == 2
    assert done.stderr.startswith(f"peelsum: {message}")


def test_a_program_runs_and_controllers_connect_while_thrift_is_refused(tmp_path):
    """As simple_switch_grpc, which is started without ports to test a control plane."""
    with KeptPort() as p4runtime, KeptPort() as thrift:
        command = [
            *(sys.executable, "-c", START, str(pipeline(32).json_path), "--log-file", str(tmp_path / "log")),
            *("-L", "info", "--thrift-port", str(thrift.number)),
            *("--", "--grpc-server-addr", p4runtime.address.replace("127.0.0.1", "0.0.0.0")),
        ]
        switch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert switch.stdout.readline() == f"P4Runtime at 0.0.0.0:{p4runtime.number}\n"
        with grpc.insecure_channel(p4runtime.address) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            with pytest.raises(grpc.RpcError, match="No forwarding pipeline config set"):
                stub.GetForwardingPipelineConfig(p4r.GetForwardingPipelineConfigRequest(), timeout=PATIENCE_S)
        with socket.create_connection(("127.0.0.1", thrift.number), PATIENCE_S) as connection:
            assert connection.recv(1) == b""
        switch.send_signal(signal.SIGTERM)
        output, errors = switch.communicate(timeout=PATIENCE_S)
        assert (switch.returncode, output) == (0, ""), (
            "neither UDP ports nor peelsum's jobs concern BMv2's users"
        )
        assert "--thrift-port: simple_switch_CLI finds no Thrift server" in errors
        assert "runs a pipeline of 32 lanes" in (tmp_path / "log.txt").read_text()
