// Header unions: at most one header of a union is valid, whichever way it became so.

#include <core.p4>
#include <v1model.p4>

header ask_h { bit<8> op; bit<8> kind; bit<16> group; }
header short_h { bit<16> s; }
header long_h { bit<32> l; }
header_union either_t { short_h short_; long_h long_; }
header told_h { bit<8> valid; bit<8> length; }
struct headers_t { ask_h ask; told_h told; either_t u; either_t w; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        transition select(hdr.ask.kind) { 1: short_one; 2: long_one; 3: both; default: accept; }
    }
    state short_one { packet.extract(hdr.u.short_); transition accept; }
    state long_one { packet.extract(hdr.u.long_); transition accept; }
    state both { packet.extract(hdr.u.short_); transition long_one; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action make_short() { hdr.u.short_.setValid(); hdr.u.short_.s = 0x1111; }
    action make_long() { hdr.u.long_.setValid(); hdr.u.long_.l = 0x22222222; }
    action copy() { hdr.w = hdr.u; hdr.u.short_.setInvalid(); }
    action copy_one() { hdr.w.long_.setValid(); hdr.w.short_ = hdr.u.short_; }
    action remove() { hdr.u.long_.setInvalid(); }
    table operations {
        key = { hdr.ask.op: exact; }
        actions = { make_short; make_long; copy; copy_one; remove; NoAction; }
        const entries = { 1: make_short(); 2: make_long(); 3: copy(); 4: copy_one(); 5: remove(); }
        const default_action = NoAction();
    }
    apply {
        sm.egress_spec = sm.ingress_port;
        sm.mcast_grp = hdr.ask.group;
        operations.apply();
        hdr.told.setValid();
        if (hdr.u.isValid()) { hdr.told.valid = 1; }
        if (hdr.u.short_.isValid()) { hdr.told.valid = hdr.told.valid | 2; }
        if (hdr.u.long_.isValid()) { hdr.told.valid = hdr.told.valid | 4; }
        if (hdr.w.isValid()) { hdr.told.valid = hdr.told.valid | 8; }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        // Every copy starts from what ingress left.
        if (hdr.ask.op == 6 && sm.egress_rid == 1) {
            hdr.u.long_.setValid();
            hdr.u.long_.l = 0x33333333;
        }
    }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
