"""Structured logs: what a line has, and which parts write them."""

import io
import json
import logging
import subprocess
import sys

import pytest
from command_line import peelsum
from patience import PATIENCE_S

from peelsum.control import SwitchError
from peelsum.control.cluster import Event
from peelsum.logs import LogsError, configure, log_event
from peelsum.softswitch.process import Listening
from peelsum.transport import Stalled

pytest.importorskip("structlog", reason="structlog is not installed")


@pytest.fixture
def written():
    """Return what was logged; the logger is afterwards as it was."""
    logger, out = logging.getLogger("peelsum"), io.StringIO()
    before = logger.handlers, logger.propagate, logger.level
    yield out
    logger.handlers, logger.propagate, logger.level = before


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_has_job_generation_and_worker(written):
    configure("json", "worker", {"job": 3, "generation": 7, "worker": 2}, out=written)
    logging.getLogger("peelsum.torch").info("step %d", 4, extra={"bytes": 10})
    (line,) = lines(written)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "step 4",
        "level": "info",
        "part": "worker",
        "job": 3,
        "generation": 7,
        "worker": 2,
        "bytes": 10,
    }


def test_an_event_s_own_fields_win_and_errors_are_warnings(written):
    configure("json", "controller", {"job": 1}, out=written)
    log_event(Event("admitted", "job: 3: admitted in generation 9", 3, 9))
    log_event(Stalled(5, 80, (1, 4), 2.0))
    log_event(Event("error", "job: 1: no room"))
    log_event(SwitchError("switch: gone; start it"))
    admitted, stalled, error, failed = lines(written)
    assert (admitted["job"], admitted["generation"], admitted["kind"]) == (3, 9, "admitted")
    assert admitted["event"] == "job: 3: admitted in generation 9"
    assert (stalled["job"], stalled["missing_workers"], stalled["kind"]) == (5, [1, 4], "Stalled")
    assert "generation" not in stalled
    assert (error["level"], error["kind"], error["job"]) == ("warning", "error", 1)
    assert (failed["level"], failed["kind"]) == ("warning", "SwitchError")


def test_the_console_s_form_is_one_line_without_colours(written):
    configure("console", "server", {"job": 1, "worker": None}, out=written)
    log_event(SwitchError("switch: gone; start it"))
    (line,) = written.getvalue().splitlines()
    assert "switch: gone; start it" in line
    assert "job=1" in line
    assert "worker" not in line
    assert "\x1b" not in line


def test_an_unknown_format_or_a_missing_package_is_an_error(monkeypatch):
    with pytest.raises(LogsError, match="log format: 'xml' is unknown; use json or console"):
        configure("xml", "server")
    monkeypatch.setitem(sys.modules, "structlog", None)
    with pytest.raises(LogsError, match=r"structlog: is not installed; run: pip install 'peelsum\[ops\]'"):
        configure("json", "server")


def test_the_commands_have_the_option():
    said = peelsum("switch", "run", "--log-format", "xml")
    assert (said.returncode, said.stderr) == (
        2,
        "peelsum: log format: 'xml' is unknown; use json or console\n",
    )
    said = peelsum("job", "admit", "job.toml", "--log-format", "json")
    assert "log-format: json: applies to --hold only; give that too" in said.stderr


def test_a_switch_logs_where_it_listens_in_a_sentence(written):
    configure("json", "switch", {"device_id": 1}, out=written)
    log_event(Listening("127.0.0.1", 9559, {1: 41001, 2: 41002}))
    line = json.loads(written.getvalue())
    assert line["event"] == "switch: P4Runtime listens at TCP port 9559; switch ports: 2"
    assert (line["kind"], line["grpc_port"]) == ("Listening", 9559)


def test_a_part_s_events_are_log_lines_on_stderr(tmp_path):
    config = tmp_path / "cluster.toml"
    config.write_text('[controller]\nstate = "s"\npoll_s = 0.05\n[[switches]]\np4runtime = "127.0.0.1:1"\n')
    words = ["controller", "run", "--config", config, "--listen", "127.0.0.1:0", "--log-format", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "peelsum.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        line = json.loads(process.stderr.readline())
        process.terminate()
        said = process.communicate(timeout=PATIENCE_S)[0]
    assert (line["kind"], line["part"], line["level"]) == ("backup", "controller", "info")
    assert line["event"] == "controller: is a backup; there is no primary before a switch answers"
    assert said.startswith("controller: listening at 127.0.0.1:")
    assert "backup" not in said
