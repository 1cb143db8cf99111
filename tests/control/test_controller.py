import os
import socket
import time
from contextlib import ExitStack

import numpy as np
import pytest
from device_state import forward, forwarding, rows, tables
from p4runtime_client import Client
from patience import PATIENCE_S
from primary import Primary

from peelsum.control import ControlError, SwitchError, session
from peelsum.control.description import parse_description
from peelsum.control.errors import DescriptionError, NotPrimaryError
from peelsum.control.sections import SwitchSection
from peelsum.control.tables import FLOOD_GROUP, bridge_entries, salt
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.runtime.device import Device
from peelsum.wire import EVERYONE, Kind, Verdict, pack, slot_index, unpack
from peelsum.wire.clock import DEFAULT_AGE_TICKS, TICK_US

LANES = 32


def exchange(device, port, now_us=0, lanes=1, **fields):
    """Process one packet at a port; return (port, packet) of all that leave."""
    payload = pack(np.full((1, LANES), lanes, np.uint32), **fields)[0].tobytes()
    return [(out, unpack(packet, LANES)[0]) for out, packet in forward(device, port, payload, now_us)]


def contribute(device, admission, worker_id, chunk_id=0, lanes=1, now_us=0, **fields):
    fields = {"generation": admission.generation, "sender": worker_id, "bitmap": 1 << worker_id, **fields}
    port = admission.worker_ports[worker_id]
    fields = {"kind": Kind.CONTRIBUTION, "job_id": admission.job_id, "chunk_id": chunk_id, **fields}
    return exchange(device, port, lanes=lanes, now_us=now_us, **fields)


def test_a_pipeline_is_loaded_once(controller, server, files, device):
    running = device.switch
    assert not controller.load_pipeline(*files)
    assert device.switch is running
    controller.session.commit(session.pipeline_schema(*files))
    assert device.switch is not running


def test_another_program_with_the_same_tables_is_loaded(controller, files, tmp_path):
    json_path, p4info_path = files
    other = tmp_path / "other.json"
    other.write_bytes(json_path.read_bytes() + b"\n")
    assert not controller.load_pipeline(json_path, p4info_path)
    assert controller.load_pipeline(other, p4info_path)
    assert not controller.load_pipeline(other, p4info_path)


def test_admission_fills_the_tables(controller, device, description):
    admission = controller.admit(description)
    assert (admission.job_id, admission.workers, admission.window) == (3, 2, 64)
    assert (admission.lanes, admission.slots) == (32, 4096)
    ((key, params),) = rows(device, "jobs")
    assert key == (3,)
    assert params[0] == admission.generation
    assert params[2:] == (0b11, 9, 3)
    assert rows(device, "members") == [((3, 4), (1, 0)), ((3, 5), (2, 1)), ((3, 9), ())]
    assert rows(device, "return_paths") == [((3, 0), (4,)), ((3, 1), (5,))]
    assert [port for port, _ in device.switch.groups.get(3)] == [4, 5]
    assert tables(device)["limits"].default[1] == (10_000,)


def test_an_admitted_job_is_summed_and_its_result_comes_back(controller, device, description):
    admission = controller.admit(description)
    assert contribute(device, admission, 0, lanes=5) == []
    ((port, up),) = contribute(device, admission, 1, lanes=7)
    assert (port, up["kind"], up["bitmap"]) == (9, Kind.BYPASS, 0b11)
    assert (up["lanes"] == 12).all()
    result = {"kind": Kind.RESULT, "job_id": 3, "generation": admission.generation, "sender": EVERYONE}
    assert [port for port, _ in exchange(device, 9, **result)] == [4, 5]
    assert [port for port, _ in exchange(device, 9, **{**result, "sender": 1})] == [5]


def test_admitting_again_raises_the_generation_and_frees_slots(controller, device, description, data_plane):
    first = controller.admit(description)
    contribute(device, first, 0, chunk_id=5)
    other = parse_description(
        "[job]\nid=131\nworkers=2\nwindow=64\n[switch]\npipeline_lanes=32\nage_limit_ms=640\n"
        "[ports]\nserver=9\nworkers=[4,5]"
    )
    kept = controller.admit(other)
    contribute(device, kept, 0, chunk_id=6)
    assert controller.status().slots_in_use == {3: 1, 131: 1}

    second = controller.admit(description)
    assert second.generation == (first.generation + 1) % (1 << 16)
    assert controller.status().slots_in_use == {131: 1}
    # An old packet is refused, and a new one starts the chunk from nothing.
    assert contribute(device, first, 1, chunk_id=5) == []
    assert contribute(device, second, 1, chunk_id=5) == []
    ((_, up),) = contribute(device, second, 0, chunk_id=5, lanes=30)
    assert (up["lanes"] == 31).all()
    verdicts = controller.verdicts()
    assert verdicts[Verdict.WRONG_GENERATION] == 1
    assert verdicts[Verdict.RESET_DONE] >= 4  # one slot, and one per admission to read the clock


def stamps(device):
    return next(r for name, r in device.switch.registers.items() if name.endswith("owner_stamp"))


def test_a_fresh_pipeline_in_a_switch_that_has_run_for_days_is_free(server, device, files, description):
    """The stamps are 0, and the switch's clock, which wraps after 76 hours, is far from that."""
    now_us, fresh = 40 * 3600 * 1_000_000, 512
    chunks = [chunk for chunk in range(4096) if slot_index(salt(3), chunk, 4096) < fresh][:64]
    with forwarding([device], now_us), Primary(server.address) as controller:
        controller.load_pipeline(*files)
        for slot in range(fresh, 4096):  # as freed just now, so that this is quick
            stamps(device).write(slot, round(now_us / TICK_US) & 0xFFFFFFFF)
        job = controller.admit(description)
        for chunk in chunks:
            assert contribute(device, job, 0, chunk_id=chunk, now_us=now_us) == []
        verdicts = controller.verdicts()
    assert (verdicts[Verdict.ABSORBED], verdicts[Verdict.COLLIDED]) == (64, 0)


def test_slots_that_cannot_be_read_are_all_reset(controller, device, description, freed, monkeypatch):
    from peelsum.control import v1model

    few = 512  # of the switch's 4,096 slots, so that this is quick
    chunk = next(chunk for chunk in range(4096) if slot_index(salt(3), chunk, 4096) < few)
    contribute(device, controller.admit(description), 0, chunk_id=chunk)
    monkeypatch.setattr(v1model, "slot_owners", lambda session: None)
    monkeypatch.setattr(v1model, "lanes_and_slots", lambda session: (LANES, few))
    controller.admit(description)
    assert freed == set(range(few))
    assert controller.verdicts()[Verdict.RESET_DONE] >= few + 1  # with one to read the clock, before
    register = next(r for name, r in device.switch.registers.items() if name.endswith("owner_tag"))
    assert register.read(slot_index(salt(3), chunk, 4096)) == 0


def test_resets_that_nobody_acknowledges_are_an_error(controller, device, description, monkeypatch):
    from peelsum.control import v1model

    controller.admit(description)
    monkeypatch.setattr(v1model, "slots_to_reset", lambda *_: [5, 6])
    monkeypatch.setattr(v1model, "_ATTEMPT_S", 0.01)
    monkeypatch.setattr(device, "inject", lambda frame: True)
    with pytest.raises(SwitchError, match=r"did not acknowledge freeing 2 of 2 slots \(first: 5\)"):
        controller.admit(description)
    assert controller.status().jobs == ()  # the job stays out rather than half in


def test_participants_may_change(controller, device, description, data_plane):
    controller.admit(description)
    moved = parse_description(
        "[job]\nid=3\nworkers=3\nwindow=64\n[switch]\npipeline_lanes=32\n[ports]\nserver=8\nworkers=[1,2,4]"
    )
    controller.admit(moved)
    assert [key for key, _ in rows(device, "members")] == [(3, 1), (3, 2), (3, 4), (3, 8)]
    assert [port for port, _ in device.switch.groups.get(3)] == [1, 2, 4]


def test_no_generation_comes_again_however_fast(controller, description, data_plane):
    """With the clock stopped, only the switch's own memory tells generations apart."""
    controller.clock = lambda: 1_000_000.0
    generations = [controller.admit(description).generation for _ in range(3)]
    controller.evict(3)
    generations += [controller.admit(description).generation for _ in range(2)]
    assert generations == [(4_000_000 + i) % (1 << 16) for i in range(5)]


def test_eviction_leaves_nothing_but_the_generation(controller, device, description):
    generation = controller.admit(description).generation
    controller.evict(3)
    for table in ("members", "return_paths"):
        assert rows(device, table) == []
    assert rows(device, "jobs") == [((3,), (generation, 0, 0, 0, 0))]
    assert controller.status().jobs == ()
    assert device.switch.groups.ids() == []
    with pytest.raises(ControlError, match="job: 3: is not admitted; admitted: none"):
        controller.evict(3)


def test_real_hosts_get_their_addresses(controller, device, description, data_plane):
    text = (
        '[job]\nid=3\nworkers=2\nwindow=64\n[switch]\npipeline_lanes=32\naddress={mac="2:0:0:0:0:fe",ip="10.0.0.254"}\n'
        '[ports]\nserver=9\nworkers=[4,5]\n[hosts.4]\nmac="2:0:0:0:0:4"\nip="10.0.0.4"\n'
    )
    controller.admit(parse_description(text))
    wanted = [((4,), (0x0200000000FE, 0x020000000004, 0x0A0000FE, 0x0A000004))]
    assert rows(device, "hosts") == wanted
    controller.admit(parse_description(text))
    assert rows(device, "hosts") == wanted
    # Another job may use the same host, and only where it is.
    other = text.replace("id=3", "id=4")
    controller.admit(parse_description(other))
    for before, after in (("2:0:0:0:0:4", "2:0:0:0:0:5"), ("10.0.0.4", "10.0.0.5")):
        with pytest.raises(
            DescriptionError, match=r"hosts\.4: has another address for job 4; evict that job first"
        ):
            controller.admit(parse_description(text.replace(before, after)))
    controller.evict(4)
    assert rows(device, "hosts") == wanted
    controller.admit(parse_description(text.replace("2:0:0:0:0:4", "2:0:0:0:0:5")))
    assert rows(device, "hosts")[0][1][1] == 0x020000000005
    controller.evict(3)
    assert rows(device, "hosts") == []


def test_other_traffic_is_the_switchs_not_the_jobs(controller, device, description, data_plane):
    """The last admission with hosts counts, and eviction changes nothing."""

    def bridged(**ports):
        macs = {int(mac, 16): port for mac, port in ports.items()}
        section = description.switch.model_copy(update={"bridge": macs})
        controller.admit(description.model_copy(update={"switch": section}))
        rows_of = [(key, params[0]) for key, params in rows(device, "bridge")]
        return rows_of, [port for port, _ in device.switch.groups.get(FLOOD_GROUP)]

    broadcast = ((0xFFFFFFFFFFFF,), FLOOD_GROUP)
    assert bridged(a=4, b=9) == ([((10,), 4), ((11,), 9), broadcast], [4, 9])
    after = bridged(b=5, c=5, d=6)
    assert after == ([((11,), 5), ((12,), 5), ((13,), 6), broadcast], [5, 6])
    assert bridged() == after
    controller.evict(3)
    assert len(rows(device, "bridge")) == 4


def test_routes_are_replaced_by_an_admission_that_has_some(controller, device, description, data_plane):
    """One route is the default route, which P4Runtime encodes as no match."""

    def routed(**hops):
        """Return routes from `hops`: the last byte of a MAC address and a port, by prefix."""
        routes = {prefix: {"port": port, "mac": f"2:0:0:0:0:{mac}"} for prefix, (mac, port) in hops.items()}
        section = SwitchSection.model_validate(
            {"pipeline_lanes": 32, "address": {"mac": "2:0:0:0:0:ff", "ip": "10.0.0.254"}, "routes": routes}
        )
        controller.admit(description.model_copy(update={"switch": section}))
        return rows(device, "routes")

    own, mac = 0x0200000000FF, 0x020000000000
    first = [(((0x0A000100, 24),), (3, own, mac + 1)), (((0x0A000200, 23),), (4, own, mac + 2))]
    assert routed(**{"10.0.1.0/24": (1, 3), "10.0.2.0/23": (2, 4)}) == first
    second = [(((0, 0),), (5, own, mac + 3)), (((0x0A000200, 23),), (6, own, mac + 2))]
    for _ in range(2):
        assert routed(**{"10.0.2.0/23": (2, 6), "0.0.0.0/0": (3, 5)}) == second
    assert routed() == second
    controller.evict(3)
    assert rows(device, "routes") == second


@pytest.mark.parametrize("key", ["age_limit_ms", "queue_depth"])
def test_an_admission_that_gives_no_limit_keeps_the_switch_s(controller, device, description, key):
    """Another job's description may have set it, and the last that gives one wins."""

    def limits(job_id, **given):
        section = SwitchSection(pipeline_lanes=32, **given)
        job = description.job.model_copy(update={"id": job_id})
        controller.admit(description.model_copy(update={"job": job, "switch": section}))
        return [tables(device)[name].default[1] for name in ("limits", "congestion")]

    new = [tables(device)[name].default[1] for name in ("limits", "congestion")]
    assert new[0] == (DEFAULT_AGE_TICKS,)
    assert limits(3) == new
    place, value = {"age_limit_ms": (0, (10_000,)), "queue_depth": (1, (640,))}[key]
    changed = limits(4, **{key: 640})
    assert (changed[place], changed[1 - place]) == (value, new[1 - place])
    assert limits(5) == changed
    controller.evict(4)
    assert limits(5) == changed


def test_what_the_pipeline_cannot_hold_is_refused(controller, device, description):
    def changed(section, **values):
        table = getattr(description, section).model_copy(update=values)
        return description.model_copy(update={section: table})

    for wrong, message in (
        (changed("job", window=2049), r"job\.window: 2049: at most half of the switch's 4096 slots"),
        (changed("switch", pipeline_lanes=256), r"switch\.pipeline_lanes: 256: the switch runs 32 lanes"),
    ):
        with pytest.raises(DescriptionError, match=message):
            controller.admit(wrong)
    assert rows(device, "jobs") == []
    assert controller.admit(changed("job", window=2048)).window == 2048


def test_ports_that_the_switch_does_not_have_are_named_before_anything_changes(files, description):
    device = Device(mode="python", ports=[1, 2, 4, 9])
    with ExitStack() as stack:
        stack.callback(device.close)
        stack.enter_context(forwarding([device]))
        server = serve(device, "127.0.0.1:0")
        stack.callback(server.stop)
        controller = stack.enter_context(Primary(server.address))
        controller.load_pipeline(*files)
        with pytest.raises(
            DescriptionError, match=r"ports: 5: .* refuses them \(.*; use one of 1, 2, 4, 9\)"
        ):
            controller.admit(description)
        assert rows(device, "jobs") == rows(device, "members") == []
        ports = description.ports.model_copy(update={"workers": (1, 4)})
        fits = description.model_copy(update={"ports": ports})
        assert controller.admit(fits).worker_ports == (1, 4)
        assert device.switch.groups.ids() == [3]


def test_nobody_there():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(
            SwitchError, match=f"nothing answers P4Runtime at {address}; is `peelsum switch run`"
        ):
            Primary(address, timeout_s=0.3)


def test_one_controller_at_a_time(server):
    with Primary(server.address, election_id=5):
        for election_id, holder in ((5, rf", process {os.getpid()} at 127.0.0.1:\d+"), (3, "")):
            with pytest.raises(
                SwitchError, match=rf"another controller is the primary .* \(election id 5{holder}\)"
            ):
                Primary(server.address, election_id=election_id)
    with pytest.raises(ControlError, match="election_id: 0: must be 1 or more"):
        Primary(server.address, election_id=0)


def test_a_greater_election_id_takes_over(server, controller):
    taking_over = Primary(server.address, election_id=5)
    with taking_over, pytest.raises(SwitchError, match="refused writing"):
        controller.session.write([+bridge_entries({1: 1})[0]])


def test_after_a_greater_id_the_next_controller_takes_over_where_it_left_off(server, description):
    backup = Client(server.address)
    stream = backup.stream()
    with Primary(server.address, election_id=9):
        stream.bid(3)
    stream.receive()
    for use in (lambda: controller.status(), lambda: controller.admit(description)):
        with (
            Primary(server.address) as controller,
            pytest.raises(SwitchError, match="runs no pipeline; load one first"),
        ):
            use()
    backup.channel.close()


def test_a_pipeline_that_is_a_pipe_is_refused(files, named_pipe):
    for paths in ((named_pipe, files[1]), (files[0], named_pipe)):
        with pytest.raises(ControlError, match=rf"{named_pipe}: is not a regular file; run `peelsum switch"):
            session.pipeline_schema(*paths)


def test_a_pipeline_that_is_not_there(server, tmp_path, files):
    with Primary(server.address) as controller:
        with pytest.raises(ControlError, match="No such file"):
            controller.load_pipeline(tmp_path / "none.json", files[1])
        broken = tmp_path / "broken.txtpb"
        broken.write_text("tables {")
        with pytest.raises(ControlError, match="cannot be read as P4Info"):
            controller.load_pipeline(files[0], broken)


def test_a_switch_that_dies_is_named(server, controller):
    server.stop()
    with pytest.raises(SwitchError, match=server.address):
        controller.verdicts()


def test_a_losing_bid_is_made_once_and_its_stream_ends(controller, server, monkeypatch):
    """Without patience there is no second bid; a stream left open would stay with the switch as a backup."""
    opened, closed = [], []

    class Watched(session.StreamChannel):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(self)

        def close(self):
            closed.append(self)
            super().close()

    with Primary(server.address, election_id=2):
        monkeypatch.setattr(session, "StreamChannel", Watched)
        with pytest.raises(NotPrimaryError):
            controller.session.become_primary()
        assert closed == opened
        assert len(opened) == 1
        assert not controller.session.is_primary


def test_the_end_of_a_session_is_told_to_every_caller(controller, server):
    stream = controller.session.stream
    server.stop()
    with pytest.raises(SwitchError):
        stream.next_packet(time.monotonic() + PATIENCE_S)
    with pytest.raises(SwitchError):
        stream.next_packet(time.monotonic())
