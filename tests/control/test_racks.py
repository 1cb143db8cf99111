"""A job on three softswitches with P4Runtime servers: two racks below a spine."""

from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from device_state import forward, forwarding, rows, tables
from patience import PATIENCE_S
from primary import Primary

from peelsum.control import ControlError, SwitchError, open_session, read_status
from peelsum.control.admission import Placement
from peelsum.control.cluster import JobController
from peelsum.control.cluster.switches import SharedSwitch
from peelsum.control.description import parse_description
from peelsum.control.errors import DescriptionError
from peelsum.control.session import Session, pipeline_schema
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.runtime.device import Device
from peelsum.transport import AggregationServer, JobConfig, TensorCompleted, WorkerEndpoint
from peelsum.wire import Verdict

TABLES = ("jobs", "members", "return_paths")
TEXT = """
[job]
id = 3
workers = 3
window = 64
[spine]
p4runtime = "{0}"
pipeline_lanes = 32
age_limit_ms = 640
server = 9
[[racks]]
p4runtime = "{1}"
pipeline_lanes = 32
uplink = 7
spine_port = 1
workers = [4, 5]
[[racks]]
p4runtime = "{2}"
pipeline_lanes = 32
uplink = 8
spine_port = 2
workers = [4]
"""


@pytest.fixture(scope="module")
def devices():
    devices = [Device(mode="python") for _ in range(3)]
    with forwarding(devices):
        yield devices
    for device in devices:
        device.close()


@pytest.fixture(scope="module")
def servers(devices):
    servers = [serve(device, "127.0.0.1:0") for device in devices]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def job(servers):
    return parse_description(TEXT.format(*(server.address for server in servers)))


@pytest.fixture
def jobs(job):
    with closing(JobController()) as jobs:
        yield jobs


def statuses(job):
    """Return the state of each switch of a job."""
    found = []
    for plan in job.plans():
        with open_session(plan.switch.p4runtime) as observer:
            found.append(read_status(observer))
    return found


def job_rows(devices):
    """Return the job's row on each switch: (action, generation, expected mask, uplink, group)."""
    found = []
    for device in devices:
        (entry,) = tables(device)["jobs"].entries()
        generation, _, *rest = entry.params
        found.append((entry.action.rsplit(".", 1)[-1], generation, *rest))
    return found


def test_admission_fills_the_tables_of_all_switches(jobs, job, devices):
    admission = SimpleNamespace(**jobs.admit_job(job))
    assert (admission.workers, admission.racks, admission.slots) == (3, (2, 1), 4096)
    assert (admission.server_port, admission.worker_ports) == (9, (4, 5, 4))
    generation = admission.generation
    leaves = [("admit_leaf", generation, mask, up, 3) for mask, up in ((0b11, 7), (0b1, 8))]
    assert job_rows(devices) == [("admit_spine", generation, 0b11, 9, 3), *leaves]
    spine, first, second = devices
    assert rows(spine, "members") == [((3, 1), (0b01, 0)), ((3, 2), (0b10, 32)), ((3, 9), ())]
    assert rows(spine, "return_paths") == [((3, 0), (1,)), ((3, 1), (1,)), ((3, 32), (2,))]
    assert rows(first, "members") == [((3, 4), (0b01, 0)), ((3, 5), (0b10, 1)), ((3, 7), ())]
    assert rows(second, "members") == [((3, 4), (0b01, 32)), ((3, 8), ())]
    assert rows(second, "return_paths") == [((3, 32), (4,))]
    groups = [[port for port, _ in device.switch.groups.get(3)] for device in devices]
    assert groups == [[1, 2], [4, 5], [4]]


def relay(devices, location, payload, arrive):
    """Carry one packet from a host through the switches, and its outputs to the hosts."""
    links = {(0, 1): (1, 7), (0, 2): (2, 8), (1, 7): (0, 1), (2, 8): (0, 2)}
    travelling = [(location, payload)]
    while travelling:
        (switch, port), payload = travelling.pop(0)
        for out, packet in forward(devices[switch], port, payload):
            if (switch, out) in links:
                travelling.append((links[switch, out], packet))
            else:
                arrive((switch, out), packet)


def test_workers_and_server_of_an_admission_get_exact_sums(jobs, job, devices):
    admission = SimpleNamespace(**jobs.admit_job(job))
    names = ("job_id", "generation", "workers", "lanes", "window", "racks")
    config = JobConfig(**{name: getattr(admission, name) for name in names})
    places = {(1, 4): 0, (1, 5): 1, (2, 4): 32}
    hosts = {place: WorkerEndpoint(config, number) for place, number in places.items()}
    hosts[0, 9] = AggregationServer(config)
    sums = {}

    def arrive(place, packet):
        batch = np.frombuffer(bytearray(packet), np.uint8)[None]
        for event in hosts[place].receive(batch, 0.0):
            if isinstance(event, TensorCompleted):
                sums[place] = event.words.copy()

    for bit, place in enumerate(places):
        hosts[place].submit(np.full(100, 1 << bit, np.uint32), "add")
    while len(sums) < len(places):
        bursts = [(place, host.to_send(0.0).copy()) for place, host in hosts.items()]
        outgoing = [(place, row.tobytes()) for place, burst in bursts for row in burst]
        assert outgoing, "everything was sent and nobody has its sum"
        for place, payload in outgoing:
            relay(devices, place, payload, arrive)
    for words in sums.values():
        np.testing.assert_array_equal(words, np.full(100, 0b111))
    assert hosts[0, 9].stats().chunks_in_switch == 4
    assert [verdicts[Verdict.COMPLETED] for verdicts in jobs.verdicts(job)] == [4, 4, 4]


@pytest.mark.parametrize("forgetful", range(2))
def test_a_switch_that_forgot_gets_its_running_job_back(jobs, job, devices, files, forgetful):
    first = jobs.admit_job(job)["generation"]
    before = [[rows(device, name) for name in TABLES] for device in devices]

    def forget():
        with Primary(job.plans()[forgetful].switch.p4runtime, patience_s=PATIENCE_S) as alone:
            alone.session.commit(pipeline_schema(*files))

    forget()
    jobs.poll()
    assert [[rows(device, name) for name in TABLES] for device in devices] == before
    assert len({tuple(device.switch.groups.ids()) for device in devices}) == 1
    forget()
    second = jobs.admit_job(job)["generation"]
    assert second == (first + 1) % (1 << 16)
    assert {row[1] for row in job_rows(devices)} == {second}


def test_no_packet_meets_half_an_admission(jobs, job, monkeypatch):
    """The job is closed from the workers upwards, reset, prepared, and opened from the server downwards.

    Switches are taken in the order of addresses, so no two controllers wait for each other.
    """
    jobs.admit_job(job)
    addresses, seen = [plan.switch.p4runtime for plan in job.plans()], []

    def note(owner, step):
        original = getattr(owner, step)

        def noted(self, *args, **named):
            address = self.address if owner is Session else self.plan.switch.p4runtime
            seen.append((step, addresses.index(address)))
            return original(self, *args, **named)

        monkeypatch.setattr(owner, step, noted)

    for step in ("check", "close", "free_slots", "prepare", "open"):
        note(Placement, step)
    note(Session, "become_primary")
    jobs.admit_job(job)
    down, up = [0, 1, 2], [2, 1, 0]
    steps = {"become_primary": sorted(down, key=addresses.__getitem__), "check": down, "close": up}
    steps |= {"free_slots": down, "prepare": down, "open": down}
    assert seen == [(step, place) for step, places in steps.items() for place in places]


def test_when_a_switch_fails_on_the_way_the_job_is_closed(jobs, job, monkeypatch):
    first = jobs.admit_job(job)["generation"]

    def fail(placement, secret):
        raise SwitchError("switch: went away")

    with monkeypatch.context() as patched:
        patched.setattr(Placement, "prepare", fail)
        with pytest.raises(SwitchError, match="went away"):
            jobs.admit_job(job)
    assert [status.jobs for status in statuses(job)] == [(), (), ()]
    assert jobs.admit_job(job)["generation"] == (first + 2) % (1 << 16)


def test_status_has_each_switch_and_an_eviction_begins_at_the_workers(jobs, job, devices, monkeypatch):
    generation = jobs.admit_job(job)["generation"]
    spine, first, second = (status.jobs[0] for status in statuses(job))
    assert (spine.level, spine.rack_ports, spine.worker_ports) == ("spine", {0: 1, 1: 2}, {})
    assert (first.level, first.rack_ports, first.worker_ports) == ("leaf", {}, {0: 4, 1: 5})
    assert (second.level, second.worker_ports, second.server_port) == ("leaf", {32: 4}, 8)
    assert spine.generation == generation
    order = []

    def evict(switch, *args, _evict=SharedSwitch.evict):
        order.append(switch.name)
        return _evict(switch, *args)

    monkeypatch.setattr(SharedSwitch, "evict", evict)
    assert jobs.evict(3) == {"waiting": []}
    assert order == [plan.switch.p4runtime for plan in reversed(job.plans())]
    assert [status.jobs for status in statuses(job)] == [(), (), ()]
    assert all(rows(device, "members") == [] for device in devices)
    with pytest.raises(ControlError, match="job: 3: is not admitted; admitted: none"):
        jobs.evict(3)
    assert jobs.admit_job(job)["generation"] == (generation + 1) % (1 << 16)


def test_what_one_switch_cannot_hold_changes_nothing_on_any(jobs, job):
    generation = jobs.admit_job(job)["generation"]
    wide = job.model_copy(update={"job": job.job.model_copy(update={"window": 2049})})
    with pytest.raises(DescriptionError, match=r"job\.window: 2049: at most half of the switch's 4096 slots"):
        jobs.admit_job(wide)
    assert [status.jobs[0].generation for status in statuses(job)] == [generation] * 3


def test_an_unreachable_switch_leaves_the_others_to_other_controllers(jobs, job, servers, monkeypatch):
    def connected(switch, connect_s, _connected=SharedSwitch._connected):
        return _connected(switch, 0.3 if switch.name == gone else connect_s)

    monkeypatch.setattr(SharedSwitch, "_connected", connected)
    gone = servers[2].address
    servers[2].stop()
    with pytest.raises(SwitchError, match=f"nothing answers P4Runtime at {gone}"):
        jobs.admit_job(job)
    with Primary(servers[0].address):
        pass
