"""Copies the program and the entries of a running switch by P4Runtime, to trace packets with them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
from finsy.proto import p4r, p4r_grpc

from peelsum.softswitch.errors import SoftswitchError
from peelsum.softswitch.inspection.trace import Tracer
from peelsum.softswitch.p4runtime.pipeline import InstalledPipeline
from peelsum.softswitch.p4runtime.status import RequestError
from peelsum.softswitch.program.model import Program
from peelsum.softswitch.runtime.switch import Switch
from peelsum.tls import TlsIdentity
from peelsum.tls.grpc_ends import open_channel

_TIMEOUT_S = 30.0
#: A program and the entries of many tables may be long.
_OPTIONS = [("grpc.max_receive_message_length", 256 << 20)]


def tracer_of_switch(address: str, device_id: int, identity: TlsIdentity | None) -> Tracer:
    """Return a tracer with the program, entries, groups and sessions of the switch at host:port.

    Registers and counters start at zero. Raises SoftswitchError or TlsError.
    """
    tracers: list[Tracer] = []

    def build(program: Program) -> Switch:
        tracers.append(Tracer(program))
        return tracers[0].switch

    try:
        with open_channel("switch", address, identity, _OPTIONS, _TIMEOUT_S) as channel:
            stub: Any = p4r_grpc.P4RuntimeStub(channel)
            request = p4r.GetForwardingPipelineConfigRequest(device_id=device_id)
            response = stub.GetForwardingPipelineConfig(request, timeout=_TIMEOUT_S)
            device = SimpleNamespace(build=build, ports=None, secret_ports=None, port_is_up=lambda port: True)
            pipeline = InstalledPipeline(response.config, cast(Any, device))

            def read(selector: p4r.Entity) -> Iterator[p4r.Entity]:
                request = p4r.ReadRequest(device_id=device_id, entities=[selector])
                try:
                    for answer in stub.Read(request, timeout=_TIMEOUT_S):
                        yield from answer.entities
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                        raise

            source = SimpleNamespace(read=read, initial_defaults=pipeline.initial_defaults)
            pipeline.copy_state(cast(Any, source))
    except grpc.RpcError as error:
        unavailable = error.code() == grpc.StatusCode.UNAVAILABLE  # whose details are gRPC's, and long
        reason = "nothing answers P4Runtime there" if unavailable else error.details()
        raise SoftswitchError(f"{address}: {reason}; is it a switch with a program?") from None
    except RequestError as error:
        raise SoftswitchError(f"{address}: {error.message}") from None
    return tracers[0]
