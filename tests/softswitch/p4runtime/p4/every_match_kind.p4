// Every kind of match that P4Runtime can express, with counters, a register, multicast and packet I/O with
// controller headers: what the tests of the P4Runtime server write and read.

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> identification;
    bit<16> fragment;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

@controller_header("packet_out")
header packet_out_h {
    bit<9> egress_port;
    bit<7> padding;
}

@controller_header("packet_in")
header packet_in_h {
    bit<9> ingress_port;
    bit<7> reason;
}

struct headers_t {
    packet_out_h packet_out;
    packet_in_h  packet_in;
    ethernet_h   ethernet;
    ipv4_h       ipv4;
}

struct metadata_t {
    bit<8> reason;
}

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            0x0800: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MatchEverything(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(16, CounterType.packets_and_bytes) seen;
    direct_counter(CounterType.packets_and_bytes) routed;
    register<bit<24>>(8) notes;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }

    action to_cpu(bit<7> reason) {
        meta.reason = (bit<8>) reason;
        standard_metadata.egress_spec = CPU_PORT;
    }

    action give_up() {
        mark_to_drop(standard_metadata);
    }

    table exact_match {
        key = {
            hdr.ethernet.dst: exact;
            standard_metadata.ingress_port: exact;
        }
        actions = { forward; flood; to_cpu; @tableonly drop; @defaultonly give_up; }
        default_action = give_up();
        size = 4;
    }

    table route {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; drop; NoAction; }
        default_action = NoAction();
        counters = routed;
        size = 64;
    }

    table filter {
        key = {
            hdr.ipv4.src: ternary;
            hdr.ipv4.protocol: optional;
            hdr.ipv4.ttl: range;
        }
        actions = { drop; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    table fixed {
        key = { hdr.ipv4.tos: exact; }
        actions = { drop; NoAction; }
        const default_action = NoAction();
        const entries = {
            1: drop();
            2: NoAction();
        }
    }

    apply {
        seen.count((bit<32>) standard_metadata.ingress_port & 0xf);
        notes.write(0, 24w0x123456);
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            exact_match.apply();
            if (hdr.ipv4.isValid()) {
                route.apply();
                filter.apply();
                fixed.apply();
            }
        }
    }
}

control TagForController(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.reason = (bit<7>) meta.reason;
        }
    }
}

control NoUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(PacketParser(), NoVerification(), MatchEverything(), TagForController(), NoUpdate(), Emit()) main;
