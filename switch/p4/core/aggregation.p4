// The switch program, the same for every architecture. An architecture defines the registers (`Owner`,
// `Bitmap`, `Lanes`), parses with `FrameParser`, sets `ingress_port` and `now`, and acts on
// `direction` and `verdict`.
//
//            +--------+   +-----------+   +-------+   +--- Slot ----+   +----------+
//   frame -->| parser |-->| Admission |-->| Owner |-->| bitmap lanes|-->| Delivery |--> up, down, back
//            +--------+   +-----------+   +-------+   +-------------+   +----------+
//                |              |             |              |                |
//                +--------------+-- verdict --+--------------+----------------+----> counted once, dropped if nowhere
//                +--> Forwarding: other traffic

#ifndef PEELSUM_CORE_AGGREGATION_P4_
#define PEELSUM_CORE_AGGREGATION_P4_

#include "admission.p4"
#include "slot.p4"
#include "delivery.p4"
#include "forwarding.p4"
#include "readdress.p4"

control Aggregation(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Admission() admission;
    Owner() owner;
    Slot() slot;
    Delivery() delivery;
    Forwarding() forwarding;

    apply {
        if (ig_md.verdict == verdict_t.UNDECIDED) {
            if (hdr.ipv4.ecn == ECN_CE) {
                hdr.peelsum.flag_ce = 1;
            }
            admission.apply(hdr, ig_md);
            ig_md.other_masks = ig_md.expected_mask ^ ig_md.worker_mask;
            // One if-else chain: on Tofino it takes one stage, which also reads the owner.
            if (ig_md.verdict == verdict_t.UNDECIDED) {
                if (hdr.peelsum.generation != ig_md.generation) {
                    ig_md.verdict = verdict_t.WRONG_GENERATION;
                } else if (hdr.peelsum.sender != ig_md.worker_id) {
                    ig_md.verdict = verdict_t.WRONG_SENDER;
                } else {
                    owner.apply(hdr, ig_md);
                }
            }
            if (ig_md.verdict == verdict_t.UNDECIDED) {
                slot.apply(hdr, ig_md);
                delivery.apply(hdr, ig_md);
            }
        } else if (hdr.udp.isValid() && hdr.udp.dst_port == UDP_PORT) {
            if (ig_md.verdict == verdict_t.NOT_PEELSUM) {
                ig_md.verdict = verdict_t.SHORT_PACKET;
            }
        } else {
            forwarding.apply(hdr, ig_md);
        }
    }
}

#endif
