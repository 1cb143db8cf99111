// What a packet knows in egress of the queue that it went through, written into it; odd ones are dropped there.

#include <core.p4>
#include <v1model.p4>

header ask_h { bit<16> group; bit<9> port; bit<6> rest; bit<1> drop; }
header told_h {
    bit<32> enqueued_depth; bit<32> dequeued_depth; bit<32> waited; bit<32> enqueued_at;
    bit<48> ingress_at; bit<48> egress_at;
}
struct headers_t { ask_h ask; told_h told; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.ask); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = hdr.ask.port;
        sm.mcast_grp = hdr.ask.group;
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        if (hdr.ask.drop == 1) {
            mark_to_drop(sm);
        }
        hdr.told.setValid();
        hdr.told.enqueued_depth = (bit<32>)sm.enq_qdepth;
        hdr.told.dequeued_depth = (bit<32>)sm.deq_qdepth;
        hdr.told.waited = sm.deq_timedelta;
        hdr.told.enqueued_at = sm.enq_timestamp;
        hdr.told.ingress_at = sm.ingress_global_timestamp;
        hdr.told.egress_at = sm.egress_global_timestamp;
    }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.told); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
