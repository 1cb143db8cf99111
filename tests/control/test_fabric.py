"""A job on three softswitches with P4Runtime servers: two racks below a spine."""

import numpy as np
import pytest
from device_state import forward, forwarding, rows, tables
from patience import PATIENCE_S

from peelsum.control import ControlError, Fabric, SwitchError, controller
from peelsum.control.description import parse_description
from peelsum.control.errors import DescriptionError
from peelsum.control.session import pipeline_schema
from peelsum.control.tables import Placement
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


@pytest.fixture
def devices():
    devices = [Device(mode="python") for _ in range(3)]
    with forwarding(devices):
        yield devices
    for device in devices:
        device.close()


@pytest.fixture
def servers(devices):
    servers = [serve(device, "127.0.0.1:0") for device in devices]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def text(servers):
    return TEXT.format(*(server.address for server in servers))


@pytest.fixture
def fabric(text, files):
    with Fabric.connect(parse_description(text)) as fabric:
        assert fabric.load_pipeline(*files) == 3
        assert fabric.load_pipeline(*files) == 0
        yield fabric


def job_rows(devices):
    """Return the job's row on each switch: (action, generation, expected mask, uplink, group)."""
    found = []
    for device in devices:
        (entry,) = tables(device)["jobs"].entries()
        generation, _, *rest = entry.params
        found.append((entry.action.rsplit(".", 1)[-1], generation, *rest))
    return found


def test_admission_fills_the_tables_of_all_switches(fabric, devices):
    admission = fabric.admit()
    assert (admission.workers, admission.racks, admission.slots) == (3, (2, 1), 4096)
    assert (admission.server_port, admission.worker_ports) == (9, (4, 5, 4))
    generation = admission.generation
    assert job_rows(devices) == [
        ("admit_spine", generation, 0b11, 9, 3),
        ("admit_leaf", generation, 0b11, 7, 3),
        ("admit_leaf", generation, 0b1, 8, 3),
    ]
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


def test_workers_and_server_of_an_admission_get_exact_sums(fabric, devices):
    admission = fabric.admit()
    config = JobConfig(
        job_id=admission.job_id,
        generation=admission.generation,
        workers=admission.workers,
        lanes=admission.lanes,
        window=admission.window,
        racks=admission.racks,
    )
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
        outgoing = [
            (place, row.tobytes()) for place, host in hosts.items() for row in host.to_send(0.0).copy()
        ]
        assert outgoing, "everything was sent and nobody has its sum"
        for place, payload in outgoing:
            relay(devices, place, payload, arrive)
    for words in sums.values():
        np.testing.assert_array_equal(words, np.full(100, 0b111))
    assert hosts[0, 9].stats().chunks_in_switch == 4
    assert [verdicts[Verdict.COMPLETED] for verdicts in fabric.verdicts()] == [4, 4, 4]


def test_a_switch_that_forgot_comes_back_under_a_generation_that_the_others_never_had(
    fabric, text, devices, files
):
    first = fabric.admit()
    fabric.close()
    forgetful = controller.Controller.connect(parse_description(text).racks[0].p4runtime)
    with forgetful:
        forgetful.session.commit(pipeline_schema(*files))
    with Fabric.connect(parse_description(text)) as again:
        second = again.admit()
    assert second.generation == (first.generation + 1) % (1 << 16)
    assert {row[1] for row in job_rows(devices)} == {second.generation}


@pytest.mark.parametrize("forgetful", range(3))
def test_a_switch_that_forgot_gets_a_running_job_back_in_its_generation(
    fabric, text, devices, files, forgetful
):
    admission = fabric.admit()
    before = [[rows(device, name) for name in TABLES] for device in devices]
    fabric.close()
    address = parse_description(text).plans()[forgetful].switch.p4runtime
    with controller.Controller.connect(address) as alone:
        alone.session.commit(pipeline_schema(*files))
    with Fabric.connect(parse_description(text)) as again:
        held = [again.holds(switch, admission.generation) for switch in range(3)]
        assert held == [switch != forgetful for switch in range(3)]
        again.put_back(forgetful, admission.generation)
        assert again.holds(forgetful, admission.generation)
        assert [[rows(device, name) for name in TABLES] for device in devices] == before
        assert len({tuple(device.switch.groups.ids()) for device in devices}) == 1


def test_what_was_evicted_or_admitted_again_is_not_restored(fabric, devices):
    first = fabric.admit()
    second = fabric.admit()
    with pytest.raises(ControlError, match=rf"job: 3: generation {first.generation} no longer runs on"):
        fabric.holds(0, first.generation)
    fabric.evict()
    with pytest.raises(ControlError, match="admit the job again"):
        fabric.holds(0, second.generation)
    assert all(rows(device, "members") == [] for device in devices)


def test_no_packet_meets_half_an_admission(fabric, devices, monkeypatch):
    """The job is closed from the workers upwards, reset, prepared, and opened from the server downwards."""
    fabric.admit()
    seen = []
    for step in ("check", "close", "free_slots", "prepare", "open"):
        original = getattr(Placement, step)

        def noted(placement, *args, step=step, original=original):
            seen.append((step, fabric.switches.index(placement.plan.switch.p4runtime)))
            return original(placement, *args)

        monkeypatch.setattr(Placement, step, noted)
    fabric.admit()
    down, up = [0, 1, 2], [2, 1, 0]
    steps = {"check": down, "close": up, "free_slots": down, "prepare": down, "open": down}
    assert seen == [(step, place) for step, places in steps.items() for place in places]


def test_when_a_switch_fails_on_the_way_the_job_is_closed_and_the_next_admission_is_new(
    fabric, devices, monkeypatch
):
    first = fabric.admit()

    def fail(placement, secret):
        raise SwitchError("switch: went away")

    with monkeypatch.context() as patched:
        patched.setattr(Placement, "prepare", fail)
        with pytest.raises(SwitchError, match="went away"):
            fabric.admit()
    assert [status.jobs for status in fabric.status()] == [(), (), ()]
    assert fabric.admit().generation == (first.generation + 2) % (1 << 16)


def test_status_shows_each_switch_as_what_it_is(fabric):
    admission = fabric.admit()
    spine, first, second = (status.jobs[0] for status in fabric.status())
    assert (spine.level, spine.rack_ports, spine.worker_ports) == ("spine", {0: 1, 1: 2}, {})
    assert (first.level, first.rack_ports, first.worker_ports) == ("leaf", {}, {0: 4, 1: 5})
    assert (second.level, second.worker_ports, second.server_port) == ("leaf", {32: 4}, 8)
    assert spine.generation == admission.generation


def test_eviction_closes_the_job_on_every_switch(fabric, devices):
    admission = fabric.admit()
    fabric.evict()
    assert [status.jobs for status in fabric.status()] == [(), (), ()]
    assert all(rows(device, "members") == [] for device in devices)
    with pytest.raises(ControlError, match="job: 3: is not admitted on any of its switches"):
        fabric.evict()
    assert fabric.admit().generation == (admission.generation + 1) % (1 << 16)


def test_what_one_switch_cannot_hold_changes_nothing_on_any(fabric, text):
    admission = fabric.admit()
    placed = fabric._placed
    too_wide = parse_description(text.replace("window = 64", "window = 2049"))
    fabric._placed = [(one, plan) for (one, _), plan in zip(placed, too_wide.plans(), strict=True)]
    with pytest.raises(DescriptionError, match=r"job\.window: 2049: at most half of the switch's 4096 slots"):
        fabric.admit()
    assert [status.jobs[0].generation for status in fabric.status()] == [admission.generation] * 3


def test_eviction_begins_at_the_workers(fabric, monkeypatch):
    """No switch forwards packets to one that has lost the job."""
    evict, order = controller.Controller.evict, []

    def noted(self, job_id):
        order.append(self.session.address)
        evict(self, job_id)

    monkeypatch.setattr(controller.Controller, "evict", noted)
    fabric.admit()
    fabric.evict()
    assert order == [*reversed(fabric.switches)]


def test_a_primary_stays_one_after_what_only_a_primary_may_do(fabric):
    fabric.admit()
    assert all(one.is_primary for one, _ in fabric._placed)
    fabric.become_backup()
    fabric.admit()
    assert not any(one.is_primary for one, _ in fabric._placed)


def test_an_unreachable_switch_leaves_the_others_to_other_controllers(text, servers, monkeypatch):
    def observe(address, *rest, timeout_s, _observe=controller.Controller.observe, **named):
        return _observe(address, *rest, timeout_s=0.3 if address == gone else timeout_s, **named)

    monkeypatch.setattr(controller.Controller, "observe", observe)
    description = parse_description(text)
    gone = servers[2].address
    servers[2].stop()
    with pytest.raises(SwitchError, match=f"nothing answers P4Runtime at {gone}"):
        Fabric.connect(description, timeout_s=PATIENCE_S)
    with controller.Controller.connect(servers[0].address):
        pass


def test_one_switch_is_a_fabric_too(server, files, data_plane, description, device):
    alone = description.model_copy(
        update={"switch": description.switch.model_copy(update={"p4runtime": server.address})}
    )
    with Fabric.connect(alone) as fabric:
        fabric.load_pipeline(*files)
        admission = fabric.admit()
        assert (admission.racks, admission.worker_ports, admission.server_port) == ((), (4, 5), 9)
        assert job_rows([device]) == [("admit_job", admission.generation, 0b11, 9, 3)]
        fabric.evict()
