// The workers in a slot, and their flags: whether any met congestion, whether any has finished. The bitmap
// stays after the sum has left: a zero bitmap under a matching tag is a tombstone, which keeps the result once
// that has passed.
//
// A stateful ALU returns one value, but the next stage needs three. So three registers hold the same bitmap.

#ifndef PEELSUM_TOFINO_BITMAP_P4_
#define PEELSUM_TOFINO_BITMAP_P4_

#include "membership.p4"
#include "overlap.p4"
#include "workers.p4"
#include "marks.p4"

control Bitmap(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Membership() membership;
    Overlap() overlap;
    Workers() workers;
    Marks() marks;

    apply {
        membership.apply(hdr, ig_md);
        overlap.apply(hdr, ig_md);
        workers.apply(hdr, ig_md);
        marks.apply(hdr, ig_md);
    }
}

#endif
