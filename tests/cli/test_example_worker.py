"""examples/worker.py prints one line that names what to do if it cannot sum."""

import runpy
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "examples" / "worker.py"


@pytest.fixture
def file(tmp_path):
    """Return the path of a file with this text; None makes no file."""

    def written(text):
        path = tmp_path / "admission.json"
        if text is not None:
            path.write_text(text)
        return path

    return written


@pytest.mark.parametrize(
    ("text", "number", "switch", "message"),
    [
        ("{}", "0", "here", "argument switch: 'here': give HOST:PORT, for example 127.0.0.1:41001"),
        ("{}", "x", "h:1", "argument worker_id: invalid int value: 'x'"),
        (
            None,
            "0",
            "h:1",
            "admission.json: No such file or directory; give a file of what `peelsum job admit --json`",
        ),
        ("", "0", "h:1", "admission.json: Expecting value: line 1 column 1 (char 0); give a file of what"),
        (
            "[]",
            "0",
            "h:1",
            "worker 0: admission: [] is not a JSON object; give what `peelsum job admit --json`",
        ),
        ("{}", "0", "h:1", "worker 0: admission: job_id is missing; give what `peelsum job admit --json`"),
    ],
)
def test_arguments_that_cannot_be_meant(file, monkeypatch, capsys, text, number, switch, message):
    monkeypatch.setattr(sys, "argv", [str(WORKER), str(file(text)), number, switch])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(WORKER), run_name="__main__")
    assert message in f"{ended.value.code} {capsys.readouterr().err}"


def test_an_error_of_the_network_is_not_the_files(file, monkeypatch):
    def job_config(admission):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("peelsum.transport.job_config", job_config)
    monkeypatch.setattr(sys, "argv", [str(WORKER), str(file("{}")), "0", "h:1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(WORKER), run_name="__main__")
    assert ended.value.code == "worker 0: [Errno 101] Network is unreachable"
