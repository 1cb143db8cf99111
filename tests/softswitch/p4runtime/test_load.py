"""Large and many requests: how their time grows, which other requests they delay, and how they end.

Times are this thread's CPU times, which a busy machine hardly changes.
"""

import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import grpc
import psutil
import pytest
from finsy.p4schema import P4Schema
from finsy.proto import U128, p4r, rpc_code
from p4runtime_client import WAIT_S, Client, outcomes, process, update
from p4runtime_entities import P4
from patience import PATIENCE_S, until

from peelsum.compiling import cache
from peelsum.pipelines import pipeline
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.p4runtime.status import RequestError

FRAME = bytes.fromhex("020000000001 020000000002 88b5") + b"payload"
#: Number of updates in a long Write.
LONG = 40_000
SWITCH = """
from peelsum.softswitch.process import run
from peelsum.switch_settings import SwitchSettings
show = lambda at: print('{"grpc_port": %d}' % at.grpc_port, flush=True)
print(sorted(run(SwitchSettings(2, "127.0.0.1:0", mode="python"), announce=show).ports))
"""


@pytest.fixture(scope="module")
def large():
    """The test program with room for 8,192 entries in every table."""
    program = json.loads((P4 / "every_match_kind.json").read_text())
    for part in program["pipelines"]:
        for table in part["tables"]:
            table["max_size"] = 8192
    return P4Schema(P4 / "every_match_kind.p4info.txtpb", json.dumps(program).encode())


@pytest.fixture
def built(large, device):
    """Return the test program's pipeline, without a server."""
    return InstalledPipeline(large.get_pipeline_config(), device)


@pytest.fixture
def entities(built):
    return built.entities


def entry(schema, table, number, **fields):
    table_entry = p4r.TableEntry(table_id=schema.tables[table].id, **fields)
    match = table_entry.match.add(field_id=1)
    if table == "exact_match":
        match.exact.value = (number + 1).to_bytes(6, "big")
        table_entry.match.add(field_id=2).exact.value = b"\3"
    elif table == "route":
        match.lpm.value, match.lpm.prefix_len = (number + 1 << 8).to_bytes(4, "big"), 24
    else:
        match.ternary.value, match.ternary.mask = (number + 1).to_bytes(4, "big"), b"\xff" * 4
        table_entry.priority = 1 + number * 7919 % 8191
    table_entry.action.action.action_id = schema.actions["drop"].id
    return table_entry


def group(number, copies=1):
    replicas = [p4r.Replica(port=b"\1", instance=instance) for instance in range(copies)]
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=replicas)
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)


def seconds(work):
    """Return the CPU seconds that this thread needs."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def batch(schema, table, kind, count):
    if table == "group":
        groups = [group(number + 1) for number in range(count)]
        return [update(kind, packet_replication_engine_entry=one) for one in groups]
    return [update(kind, table_entry=entry(schema, table, number)) for number in range(count)]


@pytest.mark.parametrize(
    "table",
    ["route", *(pytest.param(one, marks=pytest.mark.slow) for one in ("exact_match", "filter", "group"))],
)
def test_the_time_of_a_batch_grows_with_its_length(entities, large, table):
    """Compare the lesser of two times each: a quadratic algorithm would take 16 times as long."""
    kinds, counts, taken = ("INSERT", "MODIFY", "DELETE"), (1000, 4000), {}
    batches = {(kind, count): batch(large, table, kind, count) for count in counts for kind in kinds}
    for _ in range(2):
        for (kind, count), updates in batches.items():
            now = seconds(lambda updates=updates: entities.write(updates))
            taken[kind, count] = min(now, taken.get((kind, count), now))
    for kind in kinds:
        assert taken[kind, 4000] < 8 * taken[kind, 1000], (kind, taken)
        assert taken[kind, 4000] < 5, (kind, taken)


# Calls that end early


def test_a_batch_stops_where_its_call_ends(entities, large):
    attempted = iter([True] * 5)
    with pytest.raises(RequestError) as error:
        entities.write(batch(large, "route", "INSERT", 9), lambda: next(attempted, False))
    assert (error.value.code.name, "5 of 9 updates" in error.value.message) == ("CANCELLED", True)
    entities_read = entities.read(p4r.Entity(table_entry=p4r.TableEntry()))
    entries = [entity.table_entry for entity in entities_read]
    routes = [entry.match[0].lpm.value for entry in entries if not entry.is_const]
    assert routes == [(number + 1 << 8).to_bytes(4, "big").lstrip(b"\0") for number in range(5)]


def test_packets_pass_between_two_updates(built, large, device):
    """Another thread can process a batch of packets between any two updates."""
    device.install(built.switch)
    passed = []

    def between():
        packets = threading.Thread(target=lambda: passed.append(process(device, [b"\0\x80" + FRAME])))
        packets.start()
        packets.join(WAIT_S)
        return True

    built.entities.write(batch(large, "route", "INSERT", 5), between)
    assert passed == [[(1, FRAME)]] * 5


def test_what_is_read_is_as_it_was_when_it_was_asked_for(entities, large):
    updates = batch(large, "route", "INSERT", 3)
    for number, change in enumerate(updates):
        change.entity.table_entry.metadata = bytes([number])
        change.entity.table_entry.counter_data.packet_count = number
    entities.write(updates)
    register = p4r.RegisterEntry(register_id=large.registers["notes"].id)
    counter = p4r.CounterEntry(counter_id=large.counters["seen"].id)
    counted = p4r.TableEntry(counter_data=p4r.CounterData(), table_id=updates[0].entity.table_entry.table_id)
    kinds = {"table_entry": counted, "register_entry": register, "counter_entry": counter}
    kinds["direct_counter_entry"] = p4r.DirectCounterEntry()
    selectors = [p4r.Entity(**{kind: entry}) for kind, entry in kinds.items()]
    before = [list(entities.read(selector)) for selector in selectors]
    later = [entities.read(selector) for selector in selectors]
    register.index.index, register.data.bitstring = 2, b"\7"
    counter.index.index, counter.data.packet_count = 2, 7
    cells = [update("MODIFY", register_entry=register), update("MODIFY", counter_entry=counter)]
    entities.write([*batch(large, "route", "DELETE", 3), *cells])
    assert [list(answer) for answer in later] == before
    assert [entity.table_entry.counter_data.packet_count for entity in before[0]] == [0, 1, 2]
    assert [list(entities.read(selector)) for selector in selectors] != before


@pytest.mark.parametrize(("count", "detailed"), [(150, True), (151, False), (4000, False)])
def test_a_failed_batch_of_any_length_says_so(client, large, count, detailed):
    """Clients accept 8 KiB of details; with more they report an error of their own."""
    updates = batch(large, "route", "DELETE", count)
    with pytest.raises(grpc.RpcError) as error:
        client.write(*updates)
    assert error.value.code().name == "UNKNOWN"
    assert error.value.details().startswith(f"{count} of {count} updates failed; first: table ")
    assert ("at most 150" in error.value.details()) != detailed
    if detailed:
        assert [code for code, _ in outcomes(error.value)] == [rpc_code.NOT_FOUND] * count
    else:
        assert error.value.trailing_metadata() == ()


# A switch in a process of its own


@contextmanager
def switch_process(*arguments, **options):
    """Yield a running switch, by Python with these arguments, and its primary."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = subprocess.Popen([sys.executable, *arguments], text=True, **pipes, **options)
    try:
        client = Client(f"127.0.0.1:{json.loads(running.stdout.readline())['grpc_port']}")
        client.become_primary()
        yield running, client
        client.channel.close()
    finally:
        running.kill()
        running.communicate()


@pytest.fixture(scope="module")
def long_write(large):
    """Return a Write that takes over a second and stores its last update's number in an entry's metadata."""
    entries = (entry(large, "route", 0, controller_metadata=number + 1) for number in range(LONG))
    updates = [update("MODIFY", table_entry=one) for one in entries]
    return p4r.WriteRequest(device_id=1, election_id=U128.encode(1), updates=updates)


@pytest.mark.system
def test_an_interrupt_ends_the_switch_whatever_is_queued(large, long_write):
    with switch_process("-c", SWITCH) as (running, client):
        client.set_pipeline(large.get_pipeline_config())
        client.update("INSERT", table_entry=entry(large, "route", 0))
        used = psutil.Process(running.pid).cpu_times().user
        client.stub.Write(long_write)
        one_s = psutil.Process(running.pid).cpu_times().user - used
        queued = [client.stub.Write.future(long_write) for _ in range(12)]
        client.read(table_entry=p4r.TableEntry())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = psutil.Process(running.pid).cpu_times()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=PATIENCE_S)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Of the processor's time, as a busy machine has it; what is queued would take twelve times one.
        assert after.ru_utime - before.ru_utime - used.user < 4 * one_s
        assert (running.returncode, out.strip(), err) == (0, "[1, 2]", "")
        assert any(call.exception() is not None for call in queued)


@pytest.mark.system
def test_an_interrupt_does_not_wait_for_a_compilation(tmp_path):
    """The program's lock file shows that compilation began; no code shows that it did not finish."""
    loops, program = tmp_path / "peelsum/compiled", "*.runtime.native.run_*"
    shutil.copytree(cache.folder(), loops, ignore=shutil.ignore_patterns(program))
    files = pipeline(256)
    schema = P4Schema(files.p4info_path, files.json_path.read_bytes())
    command = ("-m", "peelsum.cli", "switch", "run", "--p4runtime", "127.0.0.1:0", "--json")
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": ""}
    with switch_process(*command, env=environment) as (running, client):
        waiting = threading.Thread(target=_load, args=(client, schema.get_pipeline_config()))
        waiting.start()
        until(lambda: list(loops.glob(f"{program}.lock")), "no compilation began")
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=PATIENCE_S)
        waiting.join(WAIT_S)
        assert (running.returncode, err) == (0, "")
        assert not list(loops.glob(f"{program}.nbc")), "it waited for the compiler"


def _load(client, config):
    with pytest.raises(grpc.RpcError):
        client.set_pipeline(config)
