// Registers that look alike and are not: in size, in width. All are read and written in one run.

#include <core.p4>
#include <v1model.p4>

header cells_h {
    bit<32> index; bit<32> v0; bit<32> v1; bit<32> v2; bit<32> v3; bit<32> v4; bit<32> v5; bit<32> v6; bit<32> v7;
}
struct headers_t { cells_h cells; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.cells); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
#define SWAP(n) \
    r##n.read(before, hdr.cells.index); r##n.write(hdr.cells.index, hdr.cells.v##n); hdr.cells.v##n = before;
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    register<bit<32>>(4) r0;
    register<bit<32>>(4) r1;
    register<bit<32>>(4) r2;
    register<bit<32>>(4) r3;
    register<bit<32>>(9) r4;
    register<bit<32>>(4) r5;
    register<bit<32>>(2) r6;
    register<bit<32>>(4) r7;
    apply {
        bit<32> before = 0;
        sm.egress_spec = 1;
        SWAP(0) SWAP(1) SWAP(2) SWAP(3) SWAP(4) SWAP(5) SWAP(6) SWAP(7)
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
