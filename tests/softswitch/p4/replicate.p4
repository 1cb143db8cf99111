// Multicast, with copies told apart in egress: by port, by instance, by what is added to and taken from them.

#include <core.p4>
#include <v1model.p4>

header flat_h { bit<8> kind; bit<16> group; bit<9> port; bit<7> rest; bit<32> value; }
header tag_h { bit<16> instance; bit<9> port; bit<7> zero; bit<32> length; bit<32> kind; }
struct headers_t { tag_h tag; flat_h flat; }
struct metadata_t { bit<32> left; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.flat); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        md.left = hdr.flat.value;
        sm.egress_spec = hdr.flat.port;
        if (hdr.flat.kind == 1) {
            sm.mcast_grp = hdr.flat.group;
        } else if (hdr.flat.kind == 2) {
            mark_to_drop(sm);
            // A group asked for after the drop wins over it.
            if (hdr.flat.group != 0) { sm.mcast_grp = hdr.flat.group; }
        } else if (hdr.flat.kind == 3) {
            sm.mcast_grp = hdr.flat.group;
            mark_to_drop(sm);
            exit;
        }
        hdr.flat.value = hdr.flat.value + 1;
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action tag(bit<32> extra) {
        hdr.tag.setValid();
        hdr.tag.instance = sm.egress_rid;
        hdr.tag.port = sm.egress_port;
        hdr.tag.length = sm.packet_length;
        hdr.tag.kind = sm.instance_type + extra;
        // Every copy starts from what ingress left, not from what the copy before it did.
        hdr.flat.value = hdr.flat.value + md.left;
        md.left = md.left + 1;
    }
    action strip() { hdr.flat.setInvalid(); }
    action drop() { mark_to_drop(sm); }
    table copies {
        key = { sm.egress_rid: ternary; sm.egress_port: ternary; }
        actions = { tag; strip; drop; }
        size = 8;
        default_action = tag(0);
    }
    apply { copies.apply(); }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
