// Packets that go through the switch more than once: clones of both pipelines, resubmitted, recirculated.

#include <core.p4>
#include <v1model.p4>

header ask_h { bit<8> kind; bit<8> times; bit<16> session; bit<16> group; bit<16> value; }
header hop_h { bit<16> at; }
header told_h {
    bit<8> type; bit<8> rounds; bit<16> rid; bit<16> from_port; bit<16> to_port; bit<32> length; bit<16> kept;
    bit<16> lost;
}
struct headers_t { told_h told; ask_h ask; hop_h[3] hops; }
struct metadata_t {
    @field_list(1, 2) bit<8> rounds;
    @field_list(1) bit<16> kept;
    bit<16> lost;
    // Kept, and never looked at.
    @field_list(1) bit<32> unused;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        // What was kept is there when a packet is parsed again, but for clones, whose list is read later.
        md.lost = md.kept;
        transition select(hdr.ask.times) { 200 &&& 0xf8: accept; 0: accept; default: hops; }
    }
    state hops {
        packet.extract(hdr.hops.next);
        transition select(hdr.hops.last.at) { 0: hops; default: accept; }
    }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action again() { resubmit_preserving_field_list(1); }
    action again_without() { resubmit_preserving_field_list(2); }
    action copy_to(bit<16> value) {
        md.kept = value;
        clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.ask.session, 1);
    }
    apply {
        sm.egress_spec = 9;
        md.lost = md.lost + 0x100;
        hdr.ask.value = hdr.ask.value + 1;
        if (hdr.ask.kind == 1) {
            copy_to(hdr.ask.value);
        } else if (hdr.ask.kind == 2) {
            clone(CloneType.I2E, (bit<32>)hdr.ask.session);
            sm.mcast_grp = hdr.ask.group;
        } else if (hdr.ask.kind == 3) {
            md.rounds = md.rounds + 1;
            md.kept = md.kept + 0x10;
            if (md.rounds <= hdr.ask.times - 200) { again(); }
        } else if (hdr.ask.kind == 4) {
            md.kept = 0x77;
            if (sm.instance_type == 0) {
                copy_to(0x66);
                again_without();
                mark_to_drop(sm);
            }
            md.rounds = md.rounds + 3;
        } else if (hdr.ask.kind == 5) {
            copy_to(5);
            mark_to_drop(sm);
        } else if (hdr.ask.kind == 6) {
            again();
        }
        if (hdr.ask.kind >= 25) { sm.mcast_grp = hdr.ask.group; }
        if (hdr.ask.kind == 27) { hdr.ask.group = (bit<16>)sm.packet_length; sm.mcast_grp = 0; }
        // Only the session asked for last counts.
        if (hdr.ask.kind == 7) {
            copy_to(1);
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.ask.session + 1, 2);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action tell() {
        hdr.told.setValid();
        hdr.told.type = (bit<8>)sm.instance_type;
        hdr.told.rounds = md.rounds;
        hdr.told.rid = sm.egress_rid;
        hdr.told.from_port = (bit<16>)sm.ingress_port;
        hdr.told.to_port = (bit<16>)sm.egress_port;
        hdr.told.length = sm.packet_length;
        hdr.told.kept = md.kept;
        hdr.told.lost = md.lost;
    }
    apply {
        if (hdr.ask.kind == 16 && sm.instance_type == 0) {
            md.kept = 0x99;
            md.rounds = 4;
            hdr.ask.value = hdr.ask.value + 0x10;
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.ask.session, 1);
            hdr.ask.value = hdr.ask.value + 0x20;
        } else if (hdr.ask.kind == 17 && sm.instance_type == 0) {
            clone(CloneType.E2E, (bit<32>)hdr.ask.session);
            mark_to_drop(sm);
        } else if (hdr.ask.kind == 18) {
            if (hdr.ask.times > 200) {
                hdr.ask.times = hdr.ask.times - 1;
                md.kept = md.kept + 7;
                md.rounds = md.rounds + 1;
                recirculate_preserving_field_list(1);
            } else {
                tell();
            }
        } else if (hdr.ask.kind == 19) {
            recirculate_preserving_field_list(2);
        } else if (hdr.ask.kind == 20) {
            clone(CloneType.E2E, (bit<32>)hdr.ask.session);
        } else if (hdr.ask.kind == 21 && hdr.ask.times < 4) {
            // Every round adds a hop in front; they are parsed again.
            hdr.ask.times = hdr.ask.times + 1;
            hdr.hops.push_front(1);
            hdr.hops[0].setValid();
            hdr.hops[0].at = hdr.ask.times == 1 ? 16w0xff : 0;
            if (hdr.ask.times < 4) { recirculate_preserving_field_list(1); }
        } else if (hdr.ask.kind == 22 && hdr.ask.times == 0) {
            hdr.ask.times = 200;
            md.kept = 3;
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.ask.session, 1);
            recirculate_preserving_field_list(2);
        } else if (hdr.ask.kind == 24 && hdr.ask.times > 100) {
            // Every round adds a hop, of which the next one parses only the first.
            hdr.ask.times = hdr.ask.times - 1;
            hdr.hops.push_front(1);
            hdr.hops[0].setValid();
            hdr.hops[0].at = 0xff;
            recirculate_preserving_field_list(1);
        } else if (hdr.ask.kind == 25 && sm.egress_rid == 21 && sm.instance_type == 5) {
            clone(CloneType.E2E, (bit<32>)hdr.ask.session);
        } else if (hdr.ask.kind == 26 && sm.egress_rid == 21) {
            hdr.ask.group = 0;
            recirculate_preserving_field_list(1);
        } else if (hdr.ask.kind == 23) {
            recirculate_preserving_field_list(1);
            mark_to_drop(sm);
        }
        if (hdr.ask.kind != 21 && hdr.ask.kind < 24 && (hdr.ask.kind < 18 || sm.instance_type != 0)) { tell(); }
    }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
