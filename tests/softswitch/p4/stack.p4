// Header stacks: parsed in a loop, pushed and popped in either pipeline, copied, and indexed at run time.

#include <core.p4>
#include <v1model.p4>

header ask_h { bit<8> op; bit<8> index; bit<16> group; bit<32> seen; }
header label_h { bit<16> value; bit<7> cost; bit<1> bottom; }
struct headers_t { ask_h ask; label_h[4] labels; label_h[4] copy; }
struct metadata_t { bit<32> last; bit<16> value; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        md.last = 77;
        transition select(hdr.ask.op) { 0: accept; default: parse_label; }
    }
    state parse_label {
        packet.extract(hdr.labels.next);
        md.last = hdr.labels.lastIndex;
        md.value = hdr.labels.last.value;
        transition select(hdr.labels.last.bottom, hdr.labels.last.cost) {
            (0, _): parse_label;
            (1, 100): parse_more;
            (1, 103): copy_in_parser;
            default: accept;
        }
    }
    // Not in a stack: what the loop comes back from.
    state parse_more { packet.advance(8); transition parse_label; }
    state copy_in_parser {
        hdr.copy = hdr.labels;
        packet.extract(hdr.copy.next);
        md.last = hdr.copy.lastIndex;
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action told() { hdr.ask.seen = md.last << 16 | (bit<32>)md.value; }
    action push_one() {
        hdr.labels.push_front(1);
        hdr.labels[0].setValid();
        hdr.labels[0].value = 0xaaaa;
    }
    action push_two() {
        hdr.labels.push_front(2);
        hdr.labels[1].setValid();
        hdr.labels[1] = { 0xbbbb, 5, 1 };
    }
    action push_all() { hdr.labels.push_front(4); }
    action pop_one() { hdr.labels.pop_front(1); }
    action pop_two() { hdr.labels.pop_front(2); }
    action pop_all() { hdr.labels.pop_front(4); }
    action copy_stack() {
        hdr.copy = hdr.labels;
        hdr.labels.pop_front(1);
    }
    action swap() {
        label_h kept = hdr.labels[0];
        hdr.labels[0] = hdr.labels[1];
        hdr.labels[1] = kept;
    }
    action read_at() { hdr.ask.seen = (bit<32>)hdr.labels[hdr.ask.index].value; }
    action write_at() {
        hdr.labels[hdr.ask.index].value = 0xbeef;
        hdr.labels[hdr.ask.index].cost = hdr.labels[hdr.ask.index].cost + 1;
    }
    action drop_second() { hdr.labels[1].setInvalid(); }
    action add_at() {
        hdr.labels[hdr.ask.index].setValid();
        hdr.labels[hdr.ask.index].value = 0xdddd;
    }
    action remove_at() { hdr.labels[hdr.ask.index].setInvalid(); }
    action copy_to() { hdr.labels[hdr.ask.index] = hdr.labels[0]; }
    action copy_from() { hdr.labels[0] = hdr.labels[hdr.ask.index]; }
    action is_there() { if (hdr.labels[hdr.ask.index].isValid()) { hdr.ask.seen = 1; } }
    table operations {
        key = { hdr.ask.op: exact; }
        actions = {
            told; push_one; push_two; push_all; pop_one; pop_two; pop_all; copy_stack; swap; read_at; write_at;
            drop_second; add_at; remove_at; copy_to; copy_from; is_there; NoAction;
        }
        const entries = {
            1: told(); 2: push_one(); 3: push_two(); 4: push_all(); 5: pop_one(); 6: pop_two(); 7: pop_all();
            8: copy_stack(); 9: swap(); 10: read_at(); 11: write_at(); 12: drop_second();
            18: add_at(); 19: remove_at(); 20: copy_to(); 21: copy_from(); 22: is_there();
        }
        const default_action = NoAction();
    }
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.ask.op >= 13 && hdr.ask.op < 18) { sm.mcast_grp = hdr.ask.group; }
        operations.apply();
        if (sm.parser_error == error.StackOutOfBounds) {
            hdr.ask.seen = 0x53744f66;
        } else if (sm.parser_error == error.PacketTooShort) {
            hdr.ask.seen = 0x50547368;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        // Every copy starts from what ingress left.
        if (hdr.ask.op == 13) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].value = sm.egress_rid;
        } else if (hdr.ask.op == 14 && sm.egress_rid == 2) {
            hdr.labels.pop_front(1);
        } else if (hdr.ask.op == 15 && sm.egress_rid == 2) {
            hdr.copy = hdr.labels;
        } else if (hdr.ask.op == 17 && sm.egress_rid == 2) {
            hdr.labels[hdr.ask.index].value = 0xcafe;
        } else if (hdr.ask.op == 16 && sm.egress_rid == 2) {
            hdr.labels[0] = hdr.labels[1];
        }
    }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
