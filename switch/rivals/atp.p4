// ATP's switch, after the paper: Lao et al., "ATP: In-network Aggregation for Multi-tenant Learning",
// NSDI'21, sections 3.2 to 3.6, for one rack. Hosts choose the slot (ATP's aggregator) by a hash.
//
// Uses job, workers (the fan-in degree), result, resend, collision, ecn, slot, port, chunk (the sequence number),
// and extra: the bitmap of the workers in the packet. `port` is the server's; in a result it is a worker's, or
// TO_ALL.
//
//   slot is           contribution               resend                              result
//   free              claim it                   to the server                       pass on
//   the chunk's       add; once complete,        add, to the server, free the slot   free the slot, pass on
//                     to the server
//   another chunk's   to the server, marked as   to the server, marked               pass on
//                     a collision
//
// A slot stays claimed until the result passes, so that a lost sum can be sent again.

#include <core.p4>
#include <v1model.p4>

#include "frame.p4inc"

control Aggregate(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t standard_metadata) {
    register<bit<8>>(SLOTS) owner_job;  // 0 if the slot is free
    register<bit<32>>(SLOTS) owner_chunk;
    register<bit<32>>(SLOTS) worker_bitmap;
    register<bit<8>>(SLOTS) marks;  // 1 if a packet in the sum was marked
    Lanes() lanes;
    bit<8> job;
    bit<32> chunk;
    bit<32> held;
    bit<8> mark;
    lane_op_t lane_op;

    apply {
        if (!hdr.lanes.isValid()) {
            mark_to_drop(standard_metadata);
            return;
        }
        bit<32> slot = (bit<32>)hdr.message.slot;
        owner_job.read(job, slot);
        owner_chunk.read(chunk, slot);
        worker_bitmap.read(held, slot);
        marks.read(mark, slot);
        bool is_free = job == 0;
        bool is_mine = job == hdr.message.job && chunk == hdr.message.chunk;

        if (hdr.message.port == TO_ALL) {
            standard_metadata.mcast_grp = (bit<16>)hdr.message.job;
        } else {
            standard_metadata.egress_spec = (bit<9>)hdr.message.port;
        }
        if (hdr.message.result == 1) {
            if (is_mine) {
                owner_job.write(slot, 0);
            }
        } else if (is_mine || (is_free && hdr.message.resend == 0)) {
            // The workers of a packet are all new, or all known.
            bool is_new = is_free || held & hdr.message.extra == 0;
            lane_op = lane_op_t.READ;
            if (is_free) {
                lane_op = lane_op_t.SET;
                held = 0;
                mark = 0;
                owner_chunk.write(slot, hdr.message.chunk);
            } else if (is_new) {
                lane_op = lane_op_t.ADD;
            }
            owner_job.write(slot, hdr.message.resend == 1 ? 8w0 : hdr.message.job);
            bit<32> all_workers = 32w0xffffffff >> (8w32 - hdr.message.workers);
            held = held | hdr.message.extra;
            mark = mark | 7w0 ++ hdr.message.ecn;
            worker_bitmap.write(slot, held);
            marks.write(slot, mark);
            lanes.apply(lane_op, slot, hdr.lanes);
            if (hdr.message.resend == 0 && (held != all_workers || !is_new)) {
                mark_to_drop(standard_metadata);
            }
            hdr.message.extra = held;
            hdr.message.ecn = mark[0:0];
        } else if (!is_free) {
            hdr.message.collision = 1;
        }
    }
}

V1Switch(FrameParser(), VerifyNothing(), Aggregate(), NoEgress(), Ipv4Checksum(), FrameDeparser()) main;
