// A minimal aggregator, the example of docs/how-to/bring-your-own-aggregator.md: chunk n has slot n, which counts
// its packets. The last one leaves with the sum, to all workers. A lost packet is lost for good.

#include <core.p4>
#include <v1model.p4>

#include "frame.p4inc"

control Aggregate(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    register<bit<8>>(SLOTS) counts;
    Lanes() lanes;
    bit<8> count;

    apply {
        if (!hdr.lanes.isValid()) {
            mark_to_drop(standard_metadata);
            return;
        }
        counts.read(count, hdr.message.chunk);
        count = count + 1;
        counts.write(hdr.message.chunk, count);
        lanes.apply(lane_op_t.ADD, hdr.message.chunk, hdr.lanes);
        if (count == hdr.message.workers) {
            standard_metadata.mcast_grp = (bit<16>)hdr.message.job;
        } else {
            mark_to_drop(standard_metadata);
        }
    }
}

V1Switch(FrameParser(), VerifyNothing(), Aggregate(), NoEgress(), Ipv4Checksum(), FrameDeparser()) main;
