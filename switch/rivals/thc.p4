// THC's switch, after the paper: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor
// Homomorphic Compression", NSDI'24 (arXiv 2302.08545). Workers send a 4-bit index for each value. The switch looks
// up each index's level, of 8 bits, and adds levels, so that nothing is decompressed before it is added.
//
// Uses job, workers (up to 8, so that sums fit in 8 bits), version, worker, slot, and extra: the largest absolute
// value of the slot's next chunk at this worker, a float32, whose bits compare as integers. A result has the
// largest of all workers, the range of that chunk.
//
//   contribution   lanes: 8 indices in each, the first in the highest bits
//   result         lanes: sums for the first 4 of each 8 indices; more_lanes: sums for the others
//
// Slots and losses are as in SwitchML.

#include <core.p4>
#include <v1model.p4>

#include "pool.p4inc"

#define LEVEL(x, bit3, low) (bit<8>)((x[bit3:bit3] == 1 ? upper : lower) >> (2w0 ++ x[bit3-1:low] ++ 3w0))
#define LEVELS(x, first) LEVEL(x, first, first-3) ++ LEVEL(x, first-4, first-7) \
    ++ LEVEL(x, first-8, first-11) ++ LEVEL(x, first-12, first-15)
#define LOOK_UP(i) hdr.more_lanes.v##i = LEVELS(hdr.lanes.v##i, 15); hdr.lanes.v##i = LEVELS(hdr.lanes.v##i, 31);

control Aggregate(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    Pool() pool;
    Lanes() first_sums;
    Lanes() other_sums;
    SendSum() send_sum;
    register<bit<32>>(SLOTS) ranges;
    arrival_t arrival;
    bit<32> largest;
    bit<64> lower;
    bit<64> upper;

    action set_levels(bit<64> of_0_to_7, bit<64> of_8_to_15) {
        lower = of_0_to_7;
        upper = of_8_to_15;
    }

    // Levels 0, 3, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 27, 30: ours, not the paper's. Those of small
    // indices are in the low bytes.
    table levels {
        actions = { set_levels; }
        default_action = set_levels(0x0e0d0c0a08060300, 0x1e1b181614121110);
    }

    action look_up() {
        EACH_LANE(LOOK_UP)
    }

    apply {
        if (!hdr.lanes.isValid()) {
            mark_to_drop(standard_metadata);
            return;
        }
        levels.apply();
        hdr.more_lanes.setValid();
        look_up();
        pool.apply(hdr, arrival);
        first_sums.apply(arrival.lane_op, arrival.cell, hdr.lanes);
        other_sums.apply(arrival.lane_op, arrival.cell, hdr.more_lanes);
        ranges.read(largest, arrival.cell);
        if (arrival.is_again) {
            hdr.message.extra = largest;
        } else {
            if (!arrival.is_first && largest > hdr.message.extra) {
                hdr.message.extra = largest;
            }
            ranges.write(arrival.cell, hdr.message.extra);
        }
        // The result has twice the lanes; the other headers are 44 bytes.
        hdr.ipv4.total_length = 2 * hdr.ipv4.total_length - 44;
        hdr.udp.length = hdr.ipv4.total_length - 20;
        send_sum.apply(hdr, arrival, standard_metadata);
    }
}

V1Switch(FrameParser(), VerifyNothing(), Aggregate(), NoEgress(), Ipv4Checksum(), FrameDeparser()) main;
