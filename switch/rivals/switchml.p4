// SwitchML's switch, after the paper: Sapio et al., "Scaling Distributed Machine Learning with
// In-Network Aggregation", NSDI'21, sections 3.4, 3.5 (algorithm 3) and 3.7.
//
// Uses job, workers, version, worker, slot, and extra: the exponent of the largest value that this worker will
// send as the slot's next chunk. A result carries the maximum, by which all workers scale that chunk.

#include <core.p4>
#include <v1model.p4>

#include "pool.p4inc"

control Aggregate(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    Pool() pool;
    Lanes() lanes;
    SendSum() send_sum;
    register<bit<32>>(SLOTS) exponents;
    arrival_t arrival;
    bit<32> largest;

    apply {
        if (!hdr.lanes.isValid()) {
            mark_to_drop(standard_metadata);
            return;
        }
        pool.apply(hdr, arrival);
        lanes.apply(arrival.lane_op, arrival.cell, hdr.lanes);
        exponents.read(largest, arrival.cell);
        if (arrival.is_again) {
            hdr.message.extra = largest;
        } else {
            if (!arrival.is_first && largest > hdr.message.extra) {
                hdr.message.extra = largest;
            }
            exponents.write(arrival.cell, hdr.message.extra);
        }
        send_sum.apply(hdr, arrival, standard_metadata);
    }
}

V1Switch(FrameParser(), VerifyNothing(), Aggregate(), NoEgress(), Ipv4Checksum(), FrameDeparser()) main;
