// A header stack, which the embedded target refuses.

#include <core.p4>
#include <v1model.p4>

header label_h { bit<24> label; bit<8> bottom; }
struct headers_t { label_h[3] labels; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.bottom) { 0: start; default: accept; }
    }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { sm.egress_spec = 1; } }
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.labels); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
