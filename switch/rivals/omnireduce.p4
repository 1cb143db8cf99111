// OmniReduce's aggregator in a switch, after the paper: Fei et al., "Efficient Sparse Collective
// Communication and its Application to Accelerate Distributed Deep Learning", SIGCOMM'21, algorithms 1 and 2.
// A block has as many values as a packet has lanes, and a slot serves one stream of blocks.
//
// Uses job, workers, empty, version, worker, slot, chunk (the block), and extra: the worker's next block of this
// stream that is not zero. All workers answer a request, those that do not have the block with an empty packet.
// A result has the smallest `extra`, which requests that block; 0xffffffff ends the stream.

#include <core.p4>
#include <v1model.p4>

#include "pool.p4inc"

#define ZERO(i) hdr.lanes.v##i = 0;

control Aggregate(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    Pool() pool;
    Lanes() lanes;
    SendSum() send_sum;
    register<bit<32>>(SLOTS) next_blocks;
    register<bit<16>>(SLOTS) packet_lengths;  // IPv4's, of a packet with a block
    arrival_t arrival;
    bit<32> next;
    bit<16> length;

    action set_zeros() {
        EACH_LANE(ZERO)
    }

    apply {
        if (!hdr.message.isValid()) {
            mark_to_drop(standard_metadata);
            return;
        }
        pool.apply(hdr, arrival);
        next_blocks.read(next, arrival.cell);
        if (!arrival.is_again) {
            if (arrival.is_first || hdr.message.extra < next) {
                next = hdr.message.extra;
            }
            next_blocks.write(arrival.cell, next);
        }
        hdr.message.extra = next;
        // Some packet of each sum has a block, so that the length is known when the sum is complete.
        packet_lengths.read(length, arrival.cell);
        if (hdr.message.empty == 0) {
            packet_lengths.write(arrival.cell, hdr.ipv4.total_length);
        } else {
            hdr.lanes.setValid();
            set_zeros();
            hdr.message.empty = 0;
            hdr.ipv4.total_length = length;
            hdr.udp.length = length - 20;
        }
        lanes.apply(arrival.lane_op, arrival.cell, hdr.lanes);
        send_sum.apply(hdr, arrival, standard_metadata);
    }
}

V1Switch(FrameParser(), VerifyNothing(), Aggregate(), NoEgress(), Ipv4Checksum(), FrameDeparser()) main;
