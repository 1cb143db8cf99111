"""Committed Tofino results match the committed sources, also according to the compiler if installed."""

import json
import re
import shutil

import pytest

from peelsum.pipelines.artifacts import PipelineError
from peelsum.pipelines.tofino import ASSEMBLER, COMPILER, compile_for, fingerprint, report, report_path
from peelsum.wire import TOFINO_LANES

STAGES = {"tofino": 12, "tofino2": 20}
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(ASSEMBLER) is None,
    reason=f"{COMPILER} or {ASSEMBLER} is not on PATH: build p4c with its Tofino back end",
)


@pytest.mark.parametrize("device", STAGES)
def test_the_report_is_of_the_committed_sources_and_fits_the_device(device):
    page = report_path(device).read_text()
    lanes, used, of = map(
        int, re.match(rf"peelsum for {device}, (\d+) lanes: (\d+) of (\d+) stages", page).groups()
    )
    assert (lanes, of) == (TOFINO_LANES[device], STAGES[device])
    assert used <= of
    assert f"sources {fingerprint(lanes)}\n" in page


@needs_compiler
@pytest.mark.parametrize("device", ["tofino", pytest.param("tofino2", marks=pytest.mark.slow)])
def test_the_compiler_gives_the_committed_report(device, tmp_path):
    assert compile_for(device, tmp_path) == report_path(device).read_text()
    # If a program does not read the ingress parser's error, the hardware drops short packets uncounted.
    assert "parser_error:" in (tmp_path / "pipe" / "peelsum.bfa").read_text()


def test_more_stages_than_the_device_has_are_refused(tmp_path):
    """The compiler itself continues to the end and exits with 0."""
    stages = [{"logical_tables": {"ids": [{"id": 0}]}}] * 13
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "resources.json").write_text(json.dumps({"resources": {"mau": {"mau_stages": stages}}}))
    (logs / "phv.json").write_text(json.dumps({"nStages": 12}))
    (logs / "table_summary.log").write_text("")
    with pytest.raises(PipelineError, match="tofino: 36 lanes take 13 stages of 12; use fewer lanes"):
        report("tofino", 36, tmp_path, "0")


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match=f"{COMPILER}: not found on PATH"):
        compile_for("tofino")
