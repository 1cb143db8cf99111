"""The controller against a fake Stratum on a Tofino, which refuses what the real one refuses."""

import pytest
from stratum_switch import StratumSwitch, p4info_for
from test_bf_runtime import DESCRIPTION as OVER_BF_RUNTIME
from test_bf_runtime import files, program

from peelsum.control import Fabric, JobDescription, SwitchError
from peelsum.control.entries import age_limit_entry
from peelsum.control.errors import DescriptionError
from peelsum.control.tofino import ARCHITECTURES

__all__ = ["files", "program"]

PORTS = OVER_BF_RUNTIME[OVER_BF_RUNTIME.index("[switch.tofino.ports.132]") : OVER_BF_RUNTIME.index("[ports]")]
DESCRIPTION = (
    OVER_BF_RUNTIME.replace(PORTS, "")
    .replace('"bfruntime"', '"p4runtime"')
    .replace("device_id = 0\n", "")
    .replace("age_limit_ms = 655.36\n", "")
)


@pytest.fixture
def switch():
    with StratumSwitch() as found:
        yield found


@pytest.fixture
def text(switch, program):
    return DESCRIPTION.format(address=switch.address, program=program)


def admitted(text, files):
    with Fabric.connect(JobDescription.parse(text)) as fabric:
        fabric.load_pipeline(*files)
        return fabric.admit()


def test_a_job_is_admitted_read_back_and_evicted(switch, text, files):
    with Fabric.connect(JobDescription.parse(text)) as fabric:
        assert fabric.load_pipeline(*files) == 1
        assert fabric.load_pipeline(*files) == 0
        admission = fabric.admit()
        (status,) = fabric.status()
        assert [job.generation for job in status.jobs] == [admission.generation]
        assert status.slots_in_use is None
        assert fabric.holds(0, admission.generation)
        assert fabric.admit().generation == (admission.generation + 1) % 65536
        fabric.evict()
        assert fabric.status()[0].jobs == ()
    assert switch.groups.keys() == {257}


def test_every_slot_is_freed_by_a_packet(switch, text, files):
    admitted(text, files)
    assert set(switch.resets) == set(range(1024))


@pytest.mark.parametrize(("architecture", "cells"), [("tna", 30), ("t2na", 20)])
def test_a_queue_s_depth_counts_cells(switch, text, files, architecture, cells):
    """A packet of 32 lanes has 186 bytes, 3 cells of 80 or 2 of 176; the description says 10 packets."""
    blob, p4info = files
    p4info.write_text(p4info_for(p4info.read_text(), architecture))
    ports = "server = 140\nworkers = [132, 136]"
    if architecture == "t2na":
        text = text.replace(ports, "server = 12\nworkers = [4, 8]").replace("hosts.132", "hosts.4")
    admitted(text, (blob, p4info))
    (action,) = switch.defaults.values()
    assert int.from_bytes(action.params[0].value, "big") == cells


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "server = 140\nworkers = [132, 136]\n[hosts.132]",
            "server = 9\nworkers = [4, 5]\n[hosts.4]",
            r"ports: 9: is in pipe 0, but P4Runtime frees slots of pipe 1 only, the processor's",
        ),
        ("server = 140", "server = 192", r"ports: 192: is the processor's port"),
        (
            'api = "p4runtime"',
            'api = "p4runtime"\nprocessor_port = 140',
            r"ports: 140: is the processor's port",
        ),
        (
            'api = "p4runtime"',
            'api = "p4runtime"\nprocessor_port = 320',
            r"ports: 140: is in pipe 1, but P4Runtime frees slots of pipe 2 only, the processor's",
        ),
        (
            "queue_depth = 10",
            "age_limit_ms = 500",
            r"switch\.age_limit_ms: 500: P4Runtime cannot change it on a Tofino",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_changes(switch, text, files, old, new, words):
    assert old in text
    with pytest.raises(DescriptionError, match=words):
        admitted(text.replace(old, new), files)
    assert not switch.rows
    assert not switch.resets


def test_the_limit_that_a_tofino_has_may_be_said(switch, text, files):
    admitted(text.replace("queue_depth = 10", "queue_depth = 10\nage_limit_ms = 1024"), files)
    assert switch.rows


def test_the_v1model_s_limit_is_no_table_of_a_tofino(text, files):
    with Fabric.connect(JobDescription.parse(text)) as fabric:
        fabric.load_pipeline(*files)
        session = fabric._placed[0][0].session
        for use in (lambda: session.write([~age_limit_entry(1)]), lambda: session.entries("limits")):
            with pytest.raises(SwitchError, match=r"does not take this: .*limits.*; correct"):
                use()


def test_another_device_and_a_backup_s_write_are_refused(switch, text, files):
    admitted(text, files)
    other = text.replace("pipeline_lanes = 32", "pipeline_lanes = 32\ndevice_id = 2")
    with Fabric.observe(JobDescription.parse(other)) as fabric:
        assert fabric._placed[0][0].session.schema is None
    with Fabric.observe(JobDescription.parse(text)) as fabric, pytest.raises(SwitchError, match="non-master"):
        fabric._placed[0][0].evict(3)


def test_the_devices_are_those_that_the_compiler_knows():
    assert ARCHITECTURES.keys() == {"tna", "t2na"}
    assert [device.processor_port for device in ARCHITECTURES.values()] == [192, 0]
