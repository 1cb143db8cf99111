// One table for every way to match, alone and with others: each writes what it found into a field of its own.

#include <core.p4>
#include <v1model.p4>

header probe_h {
    bit<8>  small;
    bit<16> middle;
    bit<32> address;
    bit<72> wide;
    bit<16> exact_one;
    bit<16> exact_many;
    bit<16> prefix;
    bit<16> prefix_exact;
    bit<16> masked;
    bit<16> masked_wide;
    bit<16> masked_prefix;
    bit<16> ranged;
    bit<16> everything;
}

struct headers_t {
    probe_h probe;
}

struct metadata_t { }

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.probe);
        transition accept;
    }
}

control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action in_exact_one(bit<16> id) { hdr.probe.exact_one = id; }
    action in_exact_many(bit<16> id) { hdr.probe.exact_many = id; }
    action in_prefix(bit<16> id) { hdr.probe.prefix = id; }
    action in_prefix_exact(bit<16> id) { hdr.probe.prefix_exact = id; }
    action in_masked(bit<16> id) { hdr.probe.masked = id; }
    action in_masked_wide(bit<16> id) { hdr.probe.masked_wide = id; }
    action in_masked_prefix(bit<16> id) { hdr.probe.masked_prefix = id; }
    action in_ranged(bit<16> id) { hdr.probe.ranged = id; }
    action in_everything(bit<16> id) { hdr.probe.everything = id; }

    direct_counter(CounterType.packets) of_masked;

    table exact_one {
        key = { hdr.probe.small: exact; }
        actions = { in_exact_one; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table exact_many {
        key = { hdr.probe.small: exact; hdr.probe.wide: exact; hdr.probe.middle: exact; }
        actions = { in_exact_many; NoAction; }
        default_action = NoAction();
        size = 16;
    }
    table prefix {
        key = { hdr.probe.address: lpm; }
        actions = { in_prefix; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table prefix_exact {
        key = { hdr.probe.small: exact; hdr.probe.address: lpm; }
        actions = { in_prefix_exact; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table masked {
        key = { hdr.probe.middle: ternary; }
        actions = { in_masked; NoAction; }
        default_action = NoAction();
        counters = of_masked;
        size = 64;
    }
    table masked_wide {
        key = { hdr.probe.wide: ternary; hdr.probe.small: exact; }
        actions = { in_masked_wide; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table masked_prefix {
        key = { hdr.probe.address: lpm; hdr.probe.middle: ternary; }
        actions = { in_masked_prefix; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table ranged {
        key = { hdr.probe.small: range; }
        actions = { in_ranged; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    table everything {
        key = {
            hdr.probe.middle: range;
            hdr.probe.small: exact;
            hdr.probe.wide: ternary;
            hdr.probe.address: lpm;
        }
        actions = { in_everything; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    apply {
        exact_one.apply();
        exact_many.apply();
        prefix.apply();
        prefix_exact.apply();
        masked.apply();
        masked_wide.apply();
        masked_prefix.apply();
        ranged.apply();
        everything.apply();
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { }
}

control NoUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.probe);
    }
}

V1Switch(PacketParser(), NoVerification(), I(), E(), NoUpdate(), Emit()) main;
