// peelsum for Tofino 1 (TNA) and Tofino 2 (T2NA): the core between their parsers and deparsers.

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

#include "../generated/wire.p4"

// The port of the switch's processor: 192 on a Tofino 1 of two pipes, 0 on Tofino 2. Set it with -D if it
// differs: a Tofino 1 of four pipes has 320.
#ifndef PCIE_PORT
#if __TARGET_TOFINO__ == 2
#define PCIE_PORT 0
#else
#define PCIE_PORT 192
#endif
#endif
#define CPU_PORT PCIE_PORT

#include "../core/lanes_h.p4"
#include "registers.p4"
#include "../core/types.p4"
#include "../core/headers.p4"
#include "../core/parser.p4"
#include "owner.p4"
#include "bitmap.p4"
#include "lane.p4"
#include "lanes.p4"
#include "../core/aggregation.p4"

// What ingress tells egress, in front of the frame.
header bridge_h {
    @padding bit<6> reserved;
    bit<1>          multicast;
    port_t          ingress_port;
}

struct ingress_headers_t {
    bridge_h  bridge;
    headers_t frame;
}

struct egress_metadata_t {
    bit<32> queued;  // cells
    bit<32> spare;   // 0 if the queue was at least as deep as `mark_from` says
    bit<1>  multicast;
    port_t  ingress_port;
}

parser IngressParser(
    packet_in packet,
    out ingress_headers_t hdr,
    out ingress_metadata_t ig_md,
    out ingress_intrinsic_metadata_t ig_intr_md
) {
    FrameParser() frame_parser;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        ig_md.ingress_port = ig_intr_md.ingress_port;
        // TNA's metadata starts with undefined values.
        ig_md.role = role_t.NOBODY;
        ig_md.worker_mask = 0;
        ig_md.sum_spine = 0;
        ig_md.spine = 0;
        ig_md.for_racks = 0;
        ig_md.overlap = 0;
        ig_md.lane_op = lane_op_t.NONE;
        ig_md.direction = direction_t.NOWHERE;
        ig_md.multicast = 0;
        hdr.bridge.setValid();
        frame_parser.apply(packet, hdr.frame, ig_md);
        transition accept;
    }
}

control Ingress(
    inout ingress_headers_t hdr,
    inout ingress_metadata_t ig_md,
    in ingress_intrinsic_metadata_t ig_intr_md,
    in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
    inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
    inout ingress_intrinsic_metadata_for_tm_t ig_tm_md
) {
    Counter<bit<32>, bit<5>>(32, CounterType_t.PACKETS) verdicts;
    Aggregation() aggregation;

    apply {
        ig_md.now = ig_prsr_md.global_tstamp[47:16];
        aggregation.apply(hdr.frame, ig_md);
        hdr.bridge.multicast = ig_md.multicast;
        hdr.bridge.ingress_port = ig_md.ingress_port;
        verdicts.count((bit<5>)(bit<8>)ig_md.verdict);
        // The hardware drops frames that end early before ingress unless ingress reads the parser's error. It
        // is read here so that such frames are counted before they are dropped.
        if (ig_md.direction == direction_t.NOWHERE || ig_prsr_md.parser_err != PARSER_ERROR_OK) {
            ig_dprsr_md.drop_ctl = 1;
        } else if (ig_md.multicast == 1) {
            ig_tm_md.mcast_grp_a = ig_md.group;
        } else {
            ig_tm_md.ucast_egress_port = ig_md.egress_port;
        }
    }
}

control IngressDeparser(
    packet_out packet,
    inout ingress_headers_t hdr,
    in ingress_metadata_t ig_md,
    in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md
) {
    apply {
        packet.emit(hdr);
    }
}

// Egress does not parse the lanes, which it never changes.
parser EgressParser(
    packet_in packet, out headers_t hdr, out egress_metadata_t eg_md, out egress_intrinsic_metadata_t eg_intr_md
) {
    bridge_h bridge;

    state start {
        packet.extract(eg_intr_md);
        packet.extract(bridge);
        eg_md.multicast = bridge.multicast;
        eg_md.ingress_port = bridge.ingress_port;
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type, packet.lookahead<bit<8>>()) {
            (ETHERTYPE_IPV4, 0x45) : parse_ipv4;
            default                : accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0, PROTOCOL_UDP) : parse_udp;
            default           : accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            UDP_PORT : parse_peelsum;
            default  : accept;
        }
    }
    state parse_peelsum {
        packet.extract(hdr.peelsum);
        transition accept;
    }
}

control Egress(
    inout headers_t hdr,
    inout egress_metadata_t eg_md,
    in egress_intrinsic_metadata_t eg_intr_md,
    in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
    inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
    inout egress_intrinsic_metadata_for_output_port_t eg_oport_md
) {
    Readdress() readdress;

    action mark_from(bit<32> depth) {
        eg_md.spare = depth |-| eg_md.queued;
    }

    // Mark packets that met a queue of `depth` cells or more.
    table congestion {
        actions = { mark_from; }
        default_action = mark_from((bit<32>)NEVER_MARKED);
    }

    apply {
        // Without this, the container may still hold other bits, and what they say is dropped.
        eg_dprsr_md.drop_ctl = 0;
        // 32 bits: the intrinsic field's container also holds bits of its neighbours, and the compiler would
        // subtract them too.
        eg_md.queued = (bit<32>)eg_intr_md.deq_qdepth;
        congestion.apply();
        if (hdr.peelsum.isValid()) {
            if (eg_md.spare == 0) {
                hdr.peelsum.flag_ce = 1;
            }
            readdress.apply(hdr, eg_intr_md.egress_port);
        } else if (eg_md.multicast == 1 && eg_intr_md.egress_port == eg_md.ingress_port) {
            // Do not flood a frame back to its ingress port: between two switches it would loop without end.
            eg_dprsr_md.drop_ctl = 1;
        }
    }
}

control EgressDeparser(
    packet_out packet,
    inout headers_t hdr,
    in egress_metadata_t eg_md,
    in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md
) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_CHECKSUM_FIELDS);
        }
        packet.emit(hdr);
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
