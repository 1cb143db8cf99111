// Registers of unlike sizes and widths between and behind those that a loop could step through.

#include <core.p4>
#include <v1model.p4>

header cells_h {
    bit<32> slot;
    bit<32> v0; bit<32> v1; bit<32> v2; bit<32> v3; bit<32> v4; bit<32> v5;
}
struct headers_t { cells_h cells; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.cells); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }

control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    // Every second one is short.
    register<bit<32>>(16) even_0; register<bit<32>>(3) odd_0;
    register<bit<32>>(16) even_1; register<bit<32>>(3) odd_1;
    register<bit<32>>(16) even_2; register<bit<32>>(3) odd_2;
    register<bit<32>>(16) even_3; register<bit<32>>(3) odd_3;
    register<bit<32>>(16) even_4; register<bit<32>>(3) odd_4;
    register<bit<32>>(16) even_5; register<bit<32>>(3) odd_5;
    // The last one is longer.
    register<bit<32>>(4) tail_0; register<bit<32>>(4) tail_1; register<bit<32>>(4) tail_2;
    register<bit<32>>(4) tail_3; register<bit<32>>(4) tail_4; register<bit<32>>(9) tail_5;

    apply {
        sm.egress_spec = 1;
        even_0.write(hdr.cells.slot, hdr.cells.v0); even_1.write(hdr.cells.slot, hdr.cells.v1);
        even_2.write(hdr.cells.slot, hdr.cells.v2); even_3.write(hdr.cells.slot, hdr.cells.v3);
        even_4.write(hdr.cells.slot, hdr.cells.v4); even_5.write(hdr.cells.slot, hdr.cells.v5);
        odd_0.write(hdr.cells.slot, hdr.cells.v0); odd_1.write(hdr.cells.slot, hdr.cells.v1);
        odd_2.write(hdr.cells.slot, hdr.cells.v2); odd_3.write(hdr.cells.slot, hdr.cells.v3);
        odd_4.write(hdr.cells.slot, hdr.cells.v4); odd_5.write(hdr.cells.slot, hdr.cells.v5);
        tail_0.write(hdr.cells.slot, hdr.cells.v0); tail_1.write(hdr.cells.slot, hdr.cells.v1);
        tail_2.write(hdr.cells.slot, hdr.cells.v2); tail_3.write(hdr.cells.slot, hdr.cells.v3);
        tail_4.write(hdr.cells.slot, hdr.cells.v4); tail_5.write(hdr.cells.slot, hdr.cells.v5);
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { } }
control U(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.cells); } }

V1Switch(P(), V(), I(), E(), U(), D()) main;
