// Is this frame a packet of ours, whole and of our version?

control Validity(in headers_t hdr, inout ingress_metadata_t ig_md) {
    apply {
        if (!hdr.udp.isValid() || hdr.udp.dst_port != UDP_PORT) {
            ig_md.verdict = VERDICT_NOT_PEELSUM;
        } else if (!hdr.lanes.isValid()) {
            ig_md.verdict = VERDICT_SHORT_PACKET;
        } else if (hdr.udp.length != PACKET_UDP_LENGTH) {
            ig_md.verdict = VERDICT_BAD_LENGTH;
        } else if (hdr.peelsum.version != VERSION) {
            ig_md.verdict = VERDICT_BAD_VERSION;
        } else if (hdr.peelsum.reserved_flags != 0) {
            ig_md.verdict = VERDICT_RESERVED_FLAGS;
        } else {
            ig_md.verdict = VERDICT_UNDECIDED;
        }
    }
}
