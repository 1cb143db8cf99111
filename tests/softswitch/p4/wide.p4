// Arithmetic of more than 64 bits, which is interpreted.

#include <core.p4>
#include <v1model.p4>
header wide_h {
    bit<128> a;
    bit<128> b;
    bit<128> sum;
    bit<128> difference;
    bit<128> shifted;
    bit<128> product;
    bit<8> less;
}

struct headers_t { wide_h w; }
struct metadata_t { }
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.w); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action compute() {
        sm.egress_spec = 1;
        hdr.w.sum = hdr.w.a + hdr.w.b;
        hdr.w.difference = hdr.w.a - hdr.w.b;
        hdr.w.shifted = hdr.w.a << (bit<8>) hdr.w.b[6:0];
        hdr.w.product = hdr.w.a * hdr.w.b;
        hdr.w.less = hdr.w.a < hdr.w.b ? 8w1 : 0;
    }
    apply { compute(); }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control U(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.w); } }
V1Switch(P(), V(), I(), E(), U(), D()) main;
