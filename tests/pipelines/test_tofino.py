"""Committed Tofino results match the committed sources, also according to the compiler if installed."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet
from tofino_program import FOLDER, needed

from peelsum.pipelines import tofino
from peelsum.pipelines.artifacts import PipelineError
from peelsum.pipelines.tofino import (
    ASSEMBLER,
    COMPILER,
    Profile,
    check_parsers,
    compile_for,
    fingerprint,
    pipeline_config,
    report,
    report_path,
)
from peelsum.wire import TOFINO_LANES

STAGES = {"tofino": 12, "tofino2": 20}
STATE = "  states:\n    start:\n      match: [ half ]\n      0x0800:\n        next: end\n"
ASSEMBLY = f"parser ingress:\n{STATE}parser egress:\n{STATE}stage 0 ingress:\n"
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
    if device == "tofino":
        for name, text in needed(tmp_path).items():
            assert (FOLDER / name).read_text() == text, "run tests/support/tofino_program.py"


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


@pytest.mark.parametrize("parser", ["ingress", "egress"])
def test_a_parser_of_wildcards_is_refused(parser):
    """As p4c between pull requests 5063 and 5753 makes it."""
    check_parsers("tofino", ASSEMBLY)
    drops = STATE.replace("      match: [ half ]\n", "").replace("0x0800:", "*:")
    for spoilt in (f"parser {parser}:\n{drops}", ""):
        with pytest.raises(
            PipelineError, match=f"tofino: {COMPILER} wrote a parser {parser} that compares nothing"
        ):
            check_parsers("tofino", ASSEMBLY.replace(f"parser {parser}:\n{STATE}", spoilt))


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match=f"{COMPILER}: not found on PATH"):
        compile_for("tofino")


FAKE = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
def value(option):
    return pathlib.Path(arguments[arguments.index(option) + 1])
(value("-o") / "pipe" if "{tool}" == "p4c-barefoot" else value("-o")).mkdir(parents=True, exist_ok=True)
for path, text in {writes}:
    path.write_text(text)
"""
COMPILED = f"""[
    (value("--p4runtime-files"), "p4info" + "".join(one for one in arguments if one[:2] == "-D")),
    (value("--bf-rt-schema"), "bf-rt"),
    (value("-o") / "pipe" / "peelsum.bfa", {ASSEMBLY!r}),
]"""
ASSEMBLED = """[
    (value("-o") / "context.json", "context of " + pathlib.Path(arguments[-1]).read_text()),
    (value("-o") / (str(value("--target")) + ".bin"), "binary"),
]"""


@pytest.fixture
def fake_compiler(monkeypatch, tmp_path):
    """A compiler and an assembler that write no more than was asked for, in the current folder."""
    for tool, writes in ((COMPILER, COMPILED), (ASSEMBLER, ASSEMBLED)):
        (tmp_path / tool).write_text(FAKE.format(python=sys.executable, tool=tool, writes=writes))
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tofino, "report", lambda *_: "a report")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("device", STAGES)
def test_what_a_controller_loads_lies_beside_the_compilers_output(device, fake_compiler, tmp_path):
    assert compile_for(device, Path("out")) == "a report"
    out = tmp_path / "out"
    assert (out / "p4info.txtpb").read_text() == "p4info"
    assert (out / "bf-rt.json").read_text() == "bf-rt"
    profile = Profile("pipe", f"context of {ASSEMBLY}".encode(), b"binary")
    assert (out / "stratum.pb.bin").read_bytes() == pipeline_config("peelsum", b"bf-rt", [profile])


PROFILE = Profile("pipe", b'{"tables": []}', bytes(range(256)))
CONFIG = pipeline_config("peelsum", b'{"schema_version": "1.0.0"}', [PROFILE])
LENGTH_DELIMITED = 2


def by_number(data):
    """Return (field number, wire type, value) of each field, as protobuf reads them without a declaration."""
    empty = Empty()
    empty.ParseFromString(data)
    return [(field.field_number, field.wire_type, field.data) for field in UnknownFieldSet(empty)]


def test_the_fields_have_the_numbers_of_bf_proto():
    name, bf_rt, (number, kind, profile) = by_number(CONFIG)
    assert name == (1, LENGTH_DELIMITED, b"peelsum")
    assert bf_rt == (2, LENGTH_DELIMITED, b'{"schema_version": "1.0.0"}')
    assert (number, kind) == (3, LENGTH_DELIMITED)
    assert by_number(profile) == [
        (1, LENGTH_DELIMITED, b"pipe"),
        (2, LENGTH_DELIMITED, PROFILE.context),
        (3, LENGTH_DELIMITED, PROFILE.binary),
        (4, LENGTH_DELIMITED, bytes([0, 1, 2, 3])),  # repeated numbers are packed
    ]
