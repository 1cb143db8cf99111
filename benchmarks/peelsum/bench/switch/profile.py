"""Profile the softswitch: time per packet in parts of the program, and of the loop around it.

The program is one generated Python function. This module inserts readings of the cycle counter between its
parts, compiles it as usual, and runs the load of `peelsum bench switch`. The cost of a reading is measured
and subtracted. The loop is that of a switch process on UDP: processor time of its thread. Needs x86-64.
"""

from __future__ import annotations

import ast
import multiprocessing
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from peelsum.bench.switch import rates
from peelsum.bench.switch.load import Load, drive
from peelsum.bench.switch.load_hosts import UdpHosts
from peelsum.softswitch import Switch
from peelsum.softswitch.compiler.codegen import RUNTIME
from peelsum.softswitch.p4runtime import serve
from peelsum.softswitch.process import Listening
from peelsum.softswitch.process import run as run_switch
from peelsum.softswitch.runtime import native
from peelsum.softswitch.runtime.device import Device
from peelsum.wire import packet_bytes

PARTS = ("parse", "tables", "registers", "lanes", "replicate", "checksum", "deparse", "rest")
_ROUNDS = 40
#: Runs that measure the cost of a reading, and readings in each.
_READING_RUNS, _READINGS = 101, 10_000
_CHUNKS = 256
_WORD = ir.IntType(64)
# Numba's own annotations are partial.
_inlined: Callable[[Any], Any] = intrinsic
_compiled: Callable[[Any], Any] = njit
binding.initialize_native_asmparser()


class ProfileError(Exception):
    """The profile cannot be measured on this machine. The message says why."""


def require_counter() -> None:
    """Raise ProfileError if this machine has no cycle counter that can be read."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ProfileError(f"profile: needs the cycle counter of x86-64; this is {platform.machine()}")


class Parts:
    """The program's text, with `stamp(part)` before the first statement of every section of a part."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        function = next(node for node in self.tree.body if isinstance(node, ast.FunctionDef))
        loop = next(node for node in function.body if isinstance(node, ast.While))
        loop.body = self._packet(loop.body)

    @property
    def source(self) -> str:
        """The text with stamps."""
        return ast.unparse(ast.fix_missing_locations(self.tree))

    def _packet(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Stamp one packet's body: the parser up to the first loop, ingress, then the loop over copies."""
        parsed = 1 + next(i for i, node in enumerate(body) if isinstance(node, ast.While))
        ended = next(i for i, node in enumerate(body) if _assigns(node, "group"))
        copies = next(node for node in body if isinstance(node, ast.For))
        copies.body = self._copy(copies.body)
        ingress = self._stretches(body[parsed:ended], "parse")
        return [
            *[self._stamp("parse"), *body[:parsed]],
            *ingress,
            *[self._stamp("replicate"), *body[ended:-1], self._stamp("rest"), body[-1]],
        ]

    def _copy(self, body: list[ast.stmt]) -> list[ast.stmt]:
        *before, leaving = body
        assert isinstance(leaving, ast.If)
        written = next(i for i, node in enumerate(leaving.body) if _assigns(node, "to"))
        leaving.body = [
            *[self._stamp("checksum"), *leaving.body[:written]],
            *[self._stamp("deparse"), *leaving.body[written:]],
        ]
        return [self._stamp("replicate"), *before, leaving]

    def _stretches(self, body: list[ast.stmt], entered_as: str) -> list[ast.stmt]:
        """Stamp ingress wherever a statement's part differs from that of the previous one."""
        out: list[ast.stmt] = []
        current = entered_as
        for node in body:
            part = _part(node)
            if part != current:
                out.append(self._stamp(part))
            current = part
            if isinstance(node, ast.If) and part == "tables":
                node.body = self._stretches(node.body, "tables")
                node.orelse = self._stretches(node.orelse, "tables")
                current = "" if _stamped(node) else part
            out.append(node)
        return out

    @staticmethod
    def _stamp(part: str) -> ast.stmt:
        return ast.parse(f"stamp({PARTS.index(part)})").body[0]


def _part(node: ast.stmt) -> str:
    """Return the part of ingress to which a statement belongs, ignoring inner branches of other parts."""
    if isinstance(node, ast.If) and any(isinstance(inner, ast.For) for inner in node.body):
        return "lanes"
    if isinstance(node, ast.For):
        return "lanes"
    if not isinstance(node, ast.If) and _names(node) & {"regs", "wide"}:
        return "registers"
    return "tables"


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _stamped(node: ast.AST) -> bool:
    return "stamp" in _names(node)


def _assigns(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    )


class Cycles:
    """Cycles and readings by part, at a fixed address to which compiled code writes."""

    def __init__(self) -> None:
        # Cycles and readings of each part; then the current part, and when it began.
        self._cells = np.zeros(2 * len(PARTS) + 2, np.uint64)

    def stamp(self) -> Any:
        """Return `stamp(part)` for compiled code, which ends the current part and begins another."""
        address = self._cells.ctypes.data

        @_inlined
        def stamp(context: Any, part: Any) -> Any:
            def generate(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
                cells = builder.inttoptr(_WORD(address), _WORD.as_pointer())
                last, began = (builder.gep(cells, [_WORD(2 * len(PARTS) + k)]) for k in (0, 1))
                took = builder.sub(_read_counter(builder), builder.load(began))
                cycles = builder.gep(cells, [builder.load(last)])
                readings = builder.gep(cycles, [_WORD(1)])
                builder.store(builder.add(builder.load(cycles), took), cycles)
                builder.store(builder.add(builder.load(readings), _WORD(1)), readings)
                number = ctx.cast(builder, args[0], signature.args[0], types.uint64)
                builder.store(builder.mul(number, _WORD(2)), last)
                builder.store(_read_counter(builder), began)
                return ctx.get_dummy_value()

            return types.void(part), generate

        return stamp

    def take(self) -> NDArray[np.float64]:
        """Return cycles and readings since the last call, float64[parts, 2]."""
        pairs = self._cells[: 2 * len(PARTS)].reshape(-1, 2).astype(np.float64)
        self._cells[: 2 * len(PARTS)] = 0
        return pairs


def _read_counter(builder: Any) -> Any:
    """Emit a reading of x86-64's cycle counter, after all earlier and before all later instructions."""
    text = "lfence; rdtsc; lfence; shlq $$32, %rdx; orq %rdx, %rax"
    clobbers = "={rax},~{rdx},~{memory},~{flags}"
    return builder.asm(ir.FunctionType(_WORD, []), text, clobbers, [], True)


@_inlined
def _now(context: Any) -> Any:
    """Read the cycle counter."""

    def generate(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _read_counter(builder)

    return types.uint64(), generate


@_compiled
def _cycles() -> Any:
    return _now()


def cycles_per_ns() -> float:
    """Measure the counter's rate against the clock."""
    _cycles()
    began, started = _cycles(), time.perf_counter_ns()
    time.sleep(0.05)
    return float((_cycles() - began) / (time.perf_counter_ns() - started))


def reading_cycles() -> float:
    """Return the cycles that an empty part appears to take, as the median of short runs."""
    cycles = Cycles()
    stamp = cycles.stamp()

    @_compiled
    def nothing(count: int) -> None:
        for _ in range(count):
            stamp(0)

    nothing(1)
    cycles.take()
    runs = []
    for _ in range(_READING_RUNS):
        nothing(_READINGS)
        took, readings = cycles.take()[0]
        runs.append(took / readings)
    return float(np.median(runs))


def profile_program(lanes: int, workers: int) -> dict[str, float]:
    """Return nanoseconds of each part per contribution, including its share of sums and results.

    `sum` is of all parts, `without_stamps` of the program without readings of the counter.
    """
    with _switch_in_memory(lanes, workers) as (switch, load):
        plain_ns = 1e9 / rates._replay(switch, load, 1.0)
        cycles = Cycles()
        switch._run = _stamped_run(Parts(switch.source).source, cycles.stamp())
        batch = rates._one_batch(load)
        rates._check_batch(load, switch.process(batch, 0))
        cycles.take()
        rounds = []
        for now in range(_ROUNDS):
            switch.process(batch, now)
            rounds.append(cycles.take())
    took, readings = np.median(rounds, axis=0).T
    parts = (took - readings * reading_cycles()) / cycles_per_ns() / (load.window * load.workers)
    parts_ns = dict(zip(PARTS[:-1], parts[:-1].tolist(), strict=True))
    found = {part: round(value, 2) for part, value in parts_ns.items()}
    return {**found, "sum": round(sum(parts_ns.values()), 1), "without_stamps": round(plain_ns, 1)}


@contextmanager
def _switch_in_memory(lanes: int, workers: int) -> Iterator[tuple[Switch, Load]]:
    device = Device()
    server = serve(device, "127.0.0.1:0")
    try:
        generation = rates.admit(server.address, lanes, workers)
        assert device.switch is not None
        yield (
            device.switch,
            Load.random(workers=workers, window=_CHUNKS, lanes=lanes, generation=generation),
        )
    finally:
        server.stop()
        device.close()


def _stamped_run(source: str, stamp: Any) -> Any:
    """Compile the program's function with stamps, without the cache on disk."""
    names: dict[str, Any] = {name: getattr(native, name) for name in RUNTIME} | {"stamp": stamp}
    exec(compile(source, "<stamped>", "exec"), names)
    return native.compiler(False)(names["run"])


def profile_loop(lanes: int, workers: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each part of a switch process's CPU time per contribution, over UDP and under load."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_be_switch, args=(theirs, workers + 1), daemon=True)
    process.start()
    at = ours.recv()
    generation = rates.admit(f"{at.host}:{at.grpc_port}", lanes, workers)
    load = Load.random(workers=workers, window=512, lanes=lanes, generation=generation)
    with UdpHosts(at.host, at.udp_ports, workers, packet_bytes(lanes)) as hosts:
        driven = drive(load, hosts, seconds, time.perf_counter)
    process.terminate()
    kernel_s, user_s = ours.recv()
    process.join()
    contributions = driven.chunks * workers
    parts_s = {"system calls": kernel_s, "program and loop": user_s}
    rate = {
        "packets_per_s": round(contributions / driven.seconds),
        "busy": round((kernel_s + user_s) / driven.seconds, 3),
    }
    return [{"piece": name, "ns": round(1e9 * s / contributions, 1), **rate} for name, s in parts_s.items()]


def _be_switch(connection: Connection, ports: int) -> None:
    """Run a switch process; when it ends, send its main thread's seconds in the kernel and outside."""
    began = resource.getrusage(resource.RUSAGE_THREAD)

    def announce(listening: Listening) -> None:
        nonlocal began
        began = resource.getrusage(resource.RUSAGE_THREAD)
        connection.send(listening)

    run_switch(ports, grpc_address="127.0.0.1:0", announce=announce)
    ended = resource.getrusage(resource.RUSAGE_THREAD)
    connection.send((ended.ru_stime - began.ru_stime, ended.ru_utime - began.ru_utime))
