"""Metrics over HTTP: the official parser reads them, and at rest they are what the parts themselves print."""

import json
import re
import socket
import ssl
import struct
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event, Semaphore

import numpy as np
import pytest
from patience import PATIENCE_S

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")

from clusters import job_text
from command_line import peelsum
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from peelsum.allreduce import Part
from peelsum.metrics import PARTS, MetricsError, MetricsServer, metrics_address, serve
from peelsum.metrics.serve import MAX_CLIENTS
from peelsum.processes import Child
from peelsum.tls import TlsError
from peelsum.torch.switch_seat import METRICS, connect_rank

pytestmark = pytest.mark.usefixtures("forked_children")


def read(url, parser=parse, accept="text/plain", context=None):
    """Return value by name and labels, in the order of the labels' names."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
        text = answer.read().decode()
    samples = [sample for family in parser(text) for sample in family.samples]
    return {(one.name, *one.labels.values()): one.value for one in samples}


@pytest.fixture
def served():
    values = {
        "peelsum_switch_lanes": {(): 32.0},
        "peelsum_switch_port_hellos_total": {("1",): 2.0, ("2",): 3.0},
    }
    with MetricsServer(("127.0.0.1", 0), PARTS["switch"], lambda: values) as server:
        yield server


EXPECTED = {
    ("peelsum_switch_lanes",): 32.0,
    ("peelsum_switch_port_hellos_total", "1"): 2.0,
    ("peelsum_switch_port_hellos_total", "2"): 3.0,
}


def test_both_of_prometheus_parsers_read_them(served):
    assert read(served.url) == EXPECTED
    assert read(served.url, parse_openmetrics, "application/openmetrics-text; version=1.0.0") == EXPECTED


def port_of(url):
    return int(url.split("/")[2].split(":")[1])


def silent_clients(url):
    """Connections that ask nothing, as many as there may be."""
    return [socket.create_connection(("127.0.0.1", port_of(url)), PATIENCE_S) for _ in range(MAX_CLIENTS)]


def read_once_there_is_room(url):
    while True:  # until the server has seen that a client has left
        try:
            return read(url)
        except OSError:
            pass


def test_beyond_the_most_clients_the_longest_silent_one_is_closed(served, monkeypatch):
    monkeypatch.setattr(serve, "REQUEST_TIMEOUT_S", PATIENCE_S)
    silent = silent_clients(served.url)
    silent[1].sendall(b"GET /met")  # half a line is as good as none
    assert read(served.url) == EXPECTED
    assert silent[0].recv(1) == b""
    for one in silent[2:]:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert one.recv(1) == b"H"
    for one in silent:
        one.close()


def test_clients_that_are_being_answered_are_not_closed_for_others(monkeypatch):
    monkeypatch.setattr(serve, "REQUEST_TIMEOUT_S", PATIENCE_S)
    reading, go_on = Semaphore(0), Event()

    def values():
        reading.release()
        go_on.wait(PATIENCE_S)
        return {"peelsum_switch_lanes": {(): 32.0}}

    with (
        MetricsServer(("127.0.0.1", 0), PARTS["switch"], values) as server,
        ThreadPoolExecutor(MAX_CLIENTS) as pool,
    ):
        asked = [pool.submit(read, server.url) for _ in range(MAX_CLIENTS)]
        assert all(reading.acquire(timeout=PATIENCE_S) for _ in asked)
        with pytest.raises(OSError, match=r"closed|reset"):
            read(server.url)
        go_on.set()
        assert [one.result() for one in asked] == [{("peelsum_switch_lanes",): 32.0}] * MAX_CLIENTS
        assert read_once_there_is_room(server.url) == {("peelsum_switch_lanes",): 32.0}


def test_a_request_without_end_is_cut(served, monkeypatch):
    monkeypatch.setattr(serve, "REQUEST_TIMEOUT_S", PATIENCE_S)
    with socket.create_connection(("127.0.0.1", port_of(served.url)), PATIENCE_S) as link:
        link.sendall(b"GET /metrics HTTP/1.0\r\nx: ".ljust(serve.MAX_REQUEST_BYTES, b"y"))
        assert link.recv(1) == b"H"


def test_beyond_loopback_only_with_tls(tmp_path):
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    from peelsum.tls import Role, TlsIdentity, certificates

    with pytest.raises(TlsError, match=r"metrics: 0\.0\.0\.0 is beyond loopback"):
        MetricsServer(("0.0.0.0", 0), PARTS["switch"], dict)
    switch, viewer = (
        TlsIdentity.read(certificates.make(tmp_path, role, name=role)) for role in (Role.SWITCH, Role.VIEWER)
    )
    with MetricsServer(("0.0.0.0", 0), PARTS["switch"], dict, switch) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        for said in (b"", b"\x16\x03\x01") * MAX_CLIENTS:  # port scans: a connection, perhaps data, a reset
            with socket.create_connection(("127.0.0.1", port_of(url)), PATIENCE_S) as stranger:
                stranger.sendall(said)
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        silent = silent_clients(url)
        assert read(url, context=viewer.context(server=False)) == {}
        for one in silent:
            one.close()
        nobody = ssl.create_default_context(cafile=viewer.folder / "ca.pem")
        with pytest.raises(OSError, match=r"certificate required|closed|reset|EOF"):
            read(url, context=nobody)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9561", ("127.0.0.1", 9561)),
        (":0", ("127.0.0.1", 0)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:2", ("::1", 2)),
    ],
)
def test_addresses(text, address):
    assert metrics_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "65536", "::1:9561", "[]:9561"])
def test_an_invalid_address_is_named(text):
    message = f"metrics: {text!r}: give the address as host:port, for example"
    with pytest.raises(MetricsError, match=f"^{re.escape(message)}"):
        metrics_address(text)


def test_a_port_in_use_is_named(served):
    port = port_of(served.url)
    with pytest.raises(
        MetricsError, match=f"metrics: 127.0.0.1:{port}: Address already in use; choose another"
    ):
        MetricsServer(("127.0.0.1", port), PARTS["switch"], dict)


class KeyValueStore:
    def set(self, key, value): ...
    def get(self, key): ...


def two_workers_that_sum(seats, caplog, stack):
    """Sum 40 chunks of words by two workers that leave with `stack`; return their statistics and metrics."""
    workers = [connect_rank(str(seats), rank, 2, KeyValueStore(), PATIENCE_S) for rank in range(2)]
    urls = [record.args[0] for record in caplog.records if record.msg == "metrics at %s"]
    words = np.arange(40 * 32, dtype=np.uint32)
    with ThreadPoolExecutor(2) as pool:
        sums = list(pool.map(lambda worker: worker.sum_words([Part(words, "add")])[0], workers))
        assert all(np.array_equal(one, 2 * words) for one in sums)
    for worker in workers:
        stack.callback(worker.close)
    return [(worker.stats(), read(url)) for worker, url in zip(workers, urls, strict=True)]


@pytest.mark.system
def test_after_a_run_they_are_what_the_parts_print(tmp_path, monkeypatch, caplog):
    """Two workers sum; every part's metrics are compared with its own last words."""
    caplog.set_level("INFO", "peelsum")
    with ExitStack() as stack:

        def child(name, *words):
            started = Child.peelsum(name, *words, "--metrics", "0", "--json", "--child")
            stack.callback(started.stop)
            return started, started.ready()

        switch, listening = child("switch", "switch", "run", "--ports", "3", "--p4runtime", "127.0.0.1:0")
        p4runtime, udp = f"127.0.0.1:{listening['grpc_port']}", listening["udp_ports"]
        (tmp_path / "job.toml").write_text(job_text(3, p4runtime, ports=(1, 2), up=3))
        admitted = Child.peelsum(
            "controller", "job", "admit", str(tmp_path / "job.toml"), "--json", "--child"
        )
        admission = admitted.ready()
        admitted.stop()
        at = f"127.0.0.1:{udp['3']}"
        server, serving = child(
            "server", "server", "run", "--switch", at, "--admission", json.dumps(admission)
        )
        seats = tmp_path / "seats.json"
        places = [f"127.0.0.1:{udp[port]}" for port in "12"]
        seats.write_text(json.dumps({"admission": admission, "switch": places}))
        monkeypatch.setenv(METRICS, "0")
        # They stay until the end, because the server ends soon after them.
        for number, (worker, seen) in enumerate(two_workers_that_sum(seats, caplog, stack)):
            assert seen["peelsum_worker_contributions_total", "3", str(number)] == worker.contributions
            assert seen["peelsum_worker_results_total", "3", str(number)] == worker.results == 41
            assert seen["peelsum_worker_round_trip_seconds", "3", "most", str(number)] == worker.rtt_most
        status = json.loads(peelsum("status", "--p4runtime", p4runtime, "--json").stdout)
        of_switch, of_server = read(listening["metrics"]), read(serving["metrics"])
        counted = {
            name[1]: value for name, value in of_switch.items() if "verdict_packets" in name[0] and value
        }
        assert counted == status["verdicts"]
        assert of_switch["peelsum_switch_lanes",] == 32
        printed = server.stop()
        assert of_server["peelsum_server_chunks_total", "3", "switch"] == printed["chunks_in_switch"]
        assert of_server["peelsum_server_received_packets_total", "3"] == printed["packets"]
        printed = switch.stop()
        for reason, count in printed["unsent"].items():
            assert of_switch["peelsum_switch_unsent_packets_total", reason] == count
        for port, counts in printed["ports"].items():
            assert of_switch["peelsum_switch_port_received_packets_total", port] == counts["received"]
            assert of_switch["peelsum_switch_port_sent_packets_total", port] == counts["sent"]
        assert {name: packets for name, (packets, _) in printed["verdicts"].items() if packets} == counted
