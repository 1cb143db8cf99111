"""The controller against a fake bf_switchd, which refuses what the real one refuses."""

import json
import subprocess
from contextlib import closing
from pathlib import Path
from shutil import which
from types import SimpleNamespace

import finsy
import pytest
from bf_switchd import BfSwitchd
from command_line import peelsum
from finsy.p4entity import P4TableAction, P4TableEntry
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tofino_program import FOLDER

from peelsum.control import SwitchError, evict, open_session, read_status
from peelsum.control.admission import Placement
from peelsum.control.bfruntime import BfRuntimeSession, messages, row
from peelsum.control.cluster import Cluster, JobController, Store
from peelsum.control.cluster.cluster import parse_cluster
from peelsum.control.description import parse_description
from peelsum.control.drivers import driver_of
from peelsum.control.errors import ControlError, DescriptionError, NotPrimaryError, UpdateRefusedError
from peelsum.control.session import pipeline_schema
from peelsum.control.tables import read_jobs
from peelsum.control.tofino import ARCHITECTURES
from peelsum.pipelines.tofino import Profile, pipeline_config
from peelsum.wire import Verdict

DESCRIPTION = """
[job]
id = 3
workers = 2
window = 64
[switch]
p4runtime = "{address}"
device_id = 0
pipeline_lanes = 32
age_limit_ms = 655.36
queue_depth = 10
address = {{ mac = "02:00:00:00:00:fe", ip = "10.0.0.254" }}
[switch.routes]
"0.0.0.0/0" = {{ port = 132, mac = "02:00:00:00:00:09" }}
"10.1.0.0/16" = {{ port = 136, mac = "02:00:00:00:00:05" }}
[switch.bridge]
"02:00:00:00:00:05" = 136
[switch.tofino]
program = "{program}"
[switch.tofino.ports.132]
speed = "100G"
fec = "reed_solomon"
[switch.tofino.ports.136]
speed = "25G"
fec = "none"
autonegotiation = false
[ports]
server = 140
workers = [132, 136]
[hosts.132]
mac = "02:00:00:00:00:01"
ip = "10.0.0.1"
"""


@pytest.fixture
def program(tmp_path):
    """Return a folder as `peelsum switch compile --tofino --out` writes it, without the device's binary.

    It has 1,024 slots instead of 16,384, so that the tests are quick.
    """
    config = pipeline_config("peelsum", tables(), [Profile("pipe", b"{}", b"binary")])
    (tmp_path / "stratum.pb.bin").write_bytes(config)
    p4info = (FOLDER / "p4info.txtpb").read_text().replace("size: 16384", "size: 1024")
    (tmp_path / "p4info.txtpb").write_text(p4info)
    return tmp_path


def tables():
    return (FOLDER / "bf-rt.json").read_bytes().replace(b'"size":16384', b'"size":1024')


@pytest.fixture
def switch():
    with BfSwitchd((FOLDER / "switch.json").read_bytes()) as found:
        yield found


@pytest.fixture
def text(switch, program):
    return DESCRIPTION.format(address=switch.address, program=program)


@pytest.fixture
def files(program):
    return program / "stratum.pb.bin", program / "p4info.txtpb"


class Admitting:
    """A controller of the described job, and what another client sees of its switch."""

    def __init__(self, text):
        self.job, self.jobs = parse_description(text), JobController()

    def admit(self):
        return SimpleNamespace(**self.jobs.admit_job(self.job))

    def status(self):
        with self.observer() as observer:
            return read_status(observer)

    def observer(self):
        switch = self.job.switch
        return open_session(*switch.place, tofino=switch.tofino)

    def close(self):
        self.jobs.close()


@pytest.fixture
def admitting(text):
    with closing(Admitting(text)) as admitting:
        yield admitting


@pytest.fixture
def session(switch, files):
    switch.load(files[0].read_bytes())
    with BfRuntimeSession(switch.address, pipeline_schema(*files), timeout_s=10) as found:
        found.become_primary()
        yield found


def test_a_job_is_admitted_read_back_and_evicted(switch, admitting):
    admission = admitting.admit()
    status = admitting.status()
    assert (admission.lanes, admission.slots) == (32, 1024)
    (admitted,) = status.jobs
    assert (admitted.generation, admitted.worker_ports) == (admission.generation, {0: 132, 1: 136})
    assert admitted.server_port == 140
    assert status.slots_in_use == {}
    assert status.verdicts == dict.fromkeys(Verdict, 0)
    admitting.jobs.poll()
    assert admitting.jobs.counts()["restored"] == 0
    assert admitting.jobs.evict(3) == {"waiting": []}
    assert admitting.status().jobs == ()
    assert len(switch.table("admission.jobs")) == 1  # which remembers the generation
    assert switch.table("$pre.mgid").keys() == {(b"\x01\x01",)}  # broadcasts
    assert not switch.table("admission.members")


def test_rows_have_the_values_that_the_description_gives(switch, admitting):
    generation = admitting.admit().generation
    admitting.admit()  # again, over its own rows
    assert switch.table("owner.age_limit")["default"] == {1: (10_000).to_bytes(4, "big")}
    # A packet of 32 lanes is 42 + 16 + 128 = 186 bytes: 3 cells of 80 bytes.
    assert switch.table("Egress.congestion")["default"][1] == (30).to_bytes(4, "big")
    jobs = switch.table("admission.jobs")[(b"\x03",)]
    assert jobs[1] == ((generation + 1) % 65536).to_bytes(2, "big")
    assert jobs[3] == b"\0\0\0\x03"
    assert jobs[4] == (140).to_bytes(2, "big")
    assert switch.table("forwarding.routes").keys() == {((bytes(4), 0),), ((b"\x0a\x01\0\0", 16),)}
    node = switch.schema.table("$pre.node").data["$DEV_PORT"].number
    assert switch.table("$pre.node")[(b"\0\0\0\x03",)][node] == [132, 136]
    port = switch.schema.table("$PORT").data
    first, second = (switch.table("$PORT")[(number.to_bytes(4, "big"),)] for number in (132, 136))
    names = ("$SPEED", "$FEC", "$AUTO_NEGOTIATION", "$PORT_ENABLE")
    for found, said in (
        (first, ["BF_SPEED_100G", "BF_FEC_TYP_REED_SOLOMON", "PM_AN_DEFAULT", True]),
        (second, ["BF_SPEED_25G", "BF_FEC_TYP_NONE", "PM_AN_FORCE_DISABLE", True]),
    ):
        assert [found[port[name].number] for name in names] == said


def test_a_tofino_2_counts_cells_of_176_bytes(switch, text, files):
    """A packet of 186 bytes has 2 of them; its processor is at port 0."""
    _, p4info = files
    p4info.write_text(p4info.read_text().replace('arch: "tna"', 'arch: "t2na"'))
    with closing(Admitting(text)) as admitting:
        admitting.admit()
    assert switch.table("Egress.congestion")["default"][1] == (20).to_bytes(4, "big")
    assert [(name, one.processor_port) for name, one in ARCHITECTURES.items()] == [("tna", 192), ("t2na", 0)]


def test_only_the_job_s_slots_of_its_own_pipe_are_freed(switch, admitting):
    """Slots of other jobs, and of other pipes with the same index, stay as they are, bit for bit."""
    admitting.admit()
    held = {(1, 7): {1: 500, 2: 0x103}, (0, 7): {1: 600, 2: 0x103}, (1, 8): {1: 700, 2: 0x104}}
    switch.register("owner.owner").update({key: dict(value) for key, value in held.items()})
    assert admitting.status().slots_in_use == {3: 2, 4: 1}
    admitting.admit()
    assert switch.register("owner.owner") == held | {(1, 7): {1: 500, 2: 0}}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "server = 140",
            "server = 5",
            r"ports: 5, 132, 136: are in pipes 0, 1, each with registers of its own; take all",
        ),
        ("server = 140", "server = 192", r"ports: 192: is the processor's port; use another"),
        ("[switch.tofino]", "[switch.tofino]\nprocessor_port = 140", r"ports: 140: is the processor's port"),
        ("pipeline_lanes = 32", "pipeline_lanes = 64", r"pipeline_lanes: 64: the switch runs 32 lanes"),
        ("workers = [132, 136]", "workers = [132, 250]", r"ports: 250: .* refuses them .*\$pre.node"),
    ],
)
def test_what_a_tofino_cannot_do_is_refused_before_anything_changes(switch, text, files, old, new, words):
    assert old in text
    switch.ports -= {250}
    switch.load(files[0].read_bytes())
    with closing(Admitting(text.replace(old, new))) as job, pytest.raises(DescriptionError, match=words):
        job.admit()
    assert not switch.table("admission.jobs")
    assert not switch.table("$PORT")


def test_a_port_with_another_speed_is_named_and_left_alone(switch, text, admitting):
    admitting.admit()
    admitting.close()
    before = {key: dict(value) for key, value in switch.table("$PORT").items()}
    slower = text.replace('speed = "100G"', 'speed = "40G"')
    with (
        closing(Admitting(slower)) as admitting,
        pytest.raises(
            DescriptionError,
            match=r"switch\.tofino\.ports\.132: 40G, reed_solomon: the switch has it with BF_SPEED_100G, BF",
        ),
    ):
        admitting.admit()
    assert switch.table("$PORT") == before


def test_described_ports_need_a_number_a_speed_and_an_fec(text):
    with pytest.raises(DescriptionError, match=r"switch\.tofino\.ports\.1/0: is not a number"):
        parse_description(text.replace("ports.132]", 'ports."1/0"]'))
    for name in ("speed", "fec"):
        line = next(line for line in text.splitlines() if line.startswith(name))
        with pytest.raises(DescriptionError, match=rf"{name}: is missing"):
            parse_description(text.replace(line, "", 1))


def test_one_client_binds_the_program_and_a_backup_may_read(admitting):
    admission = admitting.admit()
    with admitting.observer() as first, admitting.observer() as second:
        assert not second.has_primary()
        first.become_primary()
        assert [job.generation for job in read_jobs(second)] == [admission.generation]
        assert second.has_primary()
        with pytest.raises(NotPrimaryError, match=r"another client has bound peelsum at .*; end it first"):
            second.become_primary()
        first.become_backup()
        second.become_primary(patience_s=10)
        evict(second, 3)
        second.become_backup()
        assert not first.has_primary()


def test_an_ended_stream_is_noticed(switch, session):
    session.check_primary()
    switch.server.stop(None).wait()
    session._calls.code()  # returns when the stream has ended here, too
    with pytest.raises(SwitchError, match="ended the session; connect again"):
        session.check_primary()


# What bf_switchd refuses


def refusal(session, update, pipe=0xFFFF):
    with pytest.raises(UpdateRefusedError) as caught:
        session.write_raw([update], pipe)
    assert "refused writing: update 0 of 1: " in str(caught.value)
    return caught.value.reason


def test_the_update_that_a_switch_refuses_is_named(session):
    table = session.tables.table("owner.owner")
    update = row("MODIFY", table, 0, {"tag": 0, "expiry": 0})
    assert "Table Entry modify failed" in refusal(session, update, pipe=2)
    update.entity.table_entry.key.fields[0].exact.value = b"\0"
    assert "Failed to create key for field:65557" in refusal(session, update)


def test_a_program_without_a_binary_is_refused(switch, text, program):
    config = pipeline_config("peelsum", tables(), [Profile("pipe", b"{}", b"")])
    (program / "stratum.pb.bin").write_bytes(config)
    with (
        closing(Admitting(text)) as job,
        pytest.raises(SwitchError, match="refused loading the program: Invalid device config sent"),
    ):
        job.admit()


def test_another_program_is_not_taken_for_ours(switch, admitting):
    other = pipeline_config("other", b'{"tables": []}', [Profile("pipe", b"{}", b"binary")])
    switch.load(other)
    with admitting.observer() as observer:
        observer.become_primary()
        with pytest.raises(SwitchError, match="is not peelsum's; load that first"):
            Placement(observer, *admitting.job.plans()).check()
    admitting.admit()


def test_a_switch_that_does_not_answer_is_asked_by_the_right_name(files):
    with pytest.raises(
        SwitchError, match=r"nothing answers BF Runtime at 127.0.0.1:1; is bf_switchd running"
    ):
        BfRuntimeSession("127.0.0.1:1", pipeline_schema(*files), timeout_s=0.5)


def test_a_program_without_our_tables_is_named(session):
    with pytest.raises(SwitchError, match=r"has no table owner\.owners; load peelsum's program"):
        session.tables.table("owner.owners")
    refuses_the_limits_of_v1model(session)


def refuses_the_limits_of_v1model(session):
    action = P4TableAction("set_age_limit", ticks=1)
    limit = P4TableEntry("limits", action=action, is_default_action=True)
    for use in (lambda: session.write([~limit]), lambda: session.entries("limits")):
        with pytest.raises(SwitchError, match=r"does not accept this: .*limits.*; correct"):
            use()


def test_the_command_line_admits_a_job_and_doctor_finds_it(switch, text, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(text)
    said = peelsum("job", "admit", str(job), "--json")
    assert said.returncode == 0, said.stderr
    admission = json.loads(said.stdout)
    assert (admission["job_id"], admission["lanes"], admission["worker_ports"]) == (3, 32, [132, 136])
    findings = json.loads(peelsum("doctor", str(job), "--json").stdout)["findings"]
    (found,) = [one for one in findings if one["subject"] == f"switch {switch.address}: job 3"]
    said = f"generation {admission['generation']}, ports 132, 136, server at 140"
    assert (found["state"], found["result"]) == ("ok", said)


def test_another_server_is_not_taken_for_bf_switchd(server, files):
    with pytest.raises(SwitchError, match=server.address):
        BfRuntimeSession(server.address, pipeline_schema(*files), timeout_s=10)


def test_a_tofino_s_program_over_p4runtime_is_named(server, files):
    with open_session(server.address) as session:
        session.schema = pipeline_schema(*files)
        with pytest.raises(SwitchError, match=r"runs the program of a Tofino, .* \[switch\.tofino\]"):
            driver_of(session)
        refuses_the_limits_of_v1model(session)


def test_a_cluster_s_controller_brings_ports_up_and_puts_jobs_back(switch, text, program, tmp_path):
    ports = text[text.index("[switch.tofino.ports.132]") : text.index("[ports]")]
    cluster = f"""
        [controller]
        state = "cluster.sqlite"
        [[switches]]
        p4runtime = "{switch.address}"
        device_id = 0
        pipeline_lanes = 32
        [switches.tofino]
        program = "{program}"
        ports = {{ 132 = {{ speed = "100G", fec = "none" }} }}
    """
    job = text.replace(ports, "")
    with Store(tmp_path / "cluster.sqlite") as store:
        controller = Cluster(parse_cluster(cluster), store)
        with closing(controller):
            controller.elect()
            controller.elect()
            controller.poll()
            assert controller.listed()["switches"][0]["state"] == "up"
            assert len(switch.table("$PORT")) == 1
            generation = controller.admit(job)["generation"]
            members = dict(switch.table("admission.members"))
            assert len(members) == 3
            switch.forget()  # as after a restart
            controller.poll()
            assert switch.table("admission.members") == members
            assert controller.listed()["jobs"][0]["generation"] == generation
            controller.evict(3)
            assert not switch.table("admission.members")


@pytest.mark.skipif(which("protoc") is None, reason="needs protoc")
def test_the_compiled_declaration_is_current(tmp_path):
    source = Path(messages.__file__).parent
    google = Path(finsy.__file__).parent / "proto"
    made = tmp_path / "made"
    includes = ["-I", source, "-I", google, "-I", "/usr/include"]
    command = ["protoc", *includes, "--include_imports", f"--descriptor_set_out={made}", "bfruntime.proto"]
    subprocess.run(command, check=True)
    found = FileDescriptorSet.FromString(made.read_bytes())
    assert found == FileDescriptorSet.FromString((source / "bfruntime.binpb").read_bytes())


def test_a_program_that_was_not_compiled_has_the_command(tmp_path):
    with pytest.raises(ControlError) as error:
        pipeline_schema(tmp_path / "stratum.pb.bin", tmp_path / "p4info.txtpb")
    assert str(error.value) == (
        f"pipeline: {tmp_path / 'stratum.pb.bin'}: No such file or directory; "
        "run `peelsum switch compile --tofino`"
    )
