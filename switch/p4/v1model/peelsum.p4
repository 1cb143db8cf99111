// peelsum for v1model (BMv2 and the softswitch): the core between v1model's parser and deparser.

#include <core.p4>
#include <v1model.p4>

#include "../generated/wire.p4"
#include "../core/lanes_h.p4"
#include "registers.p4"
#include "../core/types.p4"
#include "../core/headers.p4"
#include "../core/parser.p4"
#include "owner.p4"
#include "bitmap.p4"
#include "lanes.p4"
#include "../core/aggregation.p4"

struct metadata_t {
    ingress_metadata_t ig_md;
}

parser PeelsumParser(
    packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata
) {
    FrameParser() frame_parser;

    state start {
        frame_parser.apply(packet, hdr, md.ig_md);
        transition accept;
    }
}

control PeelsumVerifyChecksum(inout headers_t hdr, inout metadata_t md) {
    apply { }
}

control PeelsumIngress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    counter(32, CounterType.packets) verdicts;
    Aggregation() aggregation;

    apply {
        md.ig_md.ingress_port = standard_metadata.ingress_port;
        md.ig_md.now = (bit<32>)(standard_metadata.ingress_global_timestamp >> TICK_SHIFT) + EPOCH_TICKS;
        aggregation.apply(hdr, md.ig_md);
        verdicts.count((bit<32>)(bit<8>)md.ig_md.verdict);
        if (md.ig_md.direction == direction_t.NOWHERE) {
            mark_to_drop(standard_metadata);
        } else if (md.ig_md.multicast == 1) {
            standard_metadata.mcast_grp = md.ig_md.group;
        } else {
            standard_metadata.egress_spec = md.ig_md.egress_port;
        }
    }
}

control PeelsumEgress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    Readdress() readdress;
    bit<19> marked_depth = NEVER_MARKED;

    action mark_from(bit<19> depth) {
        marked_depth = depth;
    }

    // Mark packets that met a queue of `depth` packets or more.
    table congestion {
        actions = { mark_from; }
        default_action = mark_from(NEVER_MARKED);
    }

    apply {
        congestion.apply();
        if (hdr.peelsum.isValid() && standard_metadata.deq_qdepth >= marked_depth) {
            hdr.peelsum.flag_ce = 1;
        }
        if (hdr.peelsum.isValid()) {
            readdress.apply(hdr, standard_metadata.egress_port);
        } else if (md.ig_md.multicast == 1 && standard_metadata.egress_port == md.ig_md.ingress_port) {
            // Do not flood a frame back to its ingress port: between two switches it would loop without end.
            mark_to_drop(standard_metadata);
        }
    }
}

control PeelsumComputeChecksum(inout headers_t hdr, inout metadata_t md) {
    apply {
        update_checksum(
            hdr.ipv4.isValid() && hdr.ipv4.ihl == IPV4_WORDS,
            IPV4_CHECKSUM_FIELDS,
            hdr.ipv4.checksum,
            HashAlgorithm.csum16
        );
    }
}

control PeelsumDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

@pkginfo(name = "peelsum")
V1Switch(
    PeelsumParser(),
    PeelsumVerifyChecksum(),
    PeelsumIngress(),
    PeelsumEgress(),
    PeelsumComputeChecksum(),
    PeelsumDeparser()
) main;
