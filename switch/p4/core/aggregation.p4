// The switch program, free of architecture. An architecture gives it `Owner`, `Bitmap` and `Lanes` (registers),
// fills in `ingress_port` and `now`, and acts on `way` and `verdict`.
//
//            +----------+   +-----------+   +------ Slot -------+   +----------+
//   frame -->| Validity |-->| Admission |-->| owner bitmap lanes|-->| Delivery |--> up, down, back
//            +----------+   +-----------+   +-------------------+   +----------+
//                 |               |                   |                   |
//                 +---------------+---- verdict ------+-------------------+----> counted once, dropped if no way
//                 +--> Forwarding: what is not ours

#include "validity.p4"
#include "admission.p4"
#include "slot.p4"
#include "delivery.p4"
#include "forwarding.p4"
#include "readdress.p4"

control Aggregation(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    Validity() validity;
    Admission() admission;
    Slot() slot;
    Delivery() delivery;
    Forwarding() forwarding;

    apply {
        validity.apply(hdr, ig_md);
        if (ig_md.verdict == VERDICT_UNDECIDED) {
            if (hdr.ipv4.ecn == ECN_CE) {
                hdr.peelsum.flag_ce = 1;
            }
            admission.apply(hdr, ig_md);
        }
        if (ig_md.verdict == VERDICT_UNDECIDED) {
            slot.apply(hdr, ig_md);
            delivery.apply(hdr, ig_md);
        } else if (ig_md.verdict == VERDICT_NOT_PEELSUM) {
            forwarding.apply(hdr, ig_md);
        }
    }
}
