// Parse a frame, and give the first verdict on a peelsum packet: its length, version and reserved flags. If a
// frame ends early, parsing stops there and the verdict stays verdict_t.NOT_PEELSUM.

#ifndef PEELSUM_CORE_PARSER_P4_
#define PEELSUM_CORE_PARSER_P4_

parser FrameParser(packet_in packet, out headers_t hdr, inout ingress_metadata_t ig_md) {
    state start {
        ig_md.verdict = verdict_t.NOT_PEELSUM;
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4 : parse_ipv4;
            default        : accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, IPV4_WORDS, 0, PROTOCOL_UDP) : parse_udp;
            default                          : accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            UDP_PORT : parse_peelsum;
            default  : accept;
        }
    }
    state parse_peelsum {
        packet.extract(hdr.peelsum);
        packet.extract(hdr.lanes);
        transition select(hdr.udp.length, hdr.peelsum.version, hdr.peelsum.reserved_flags) {
            (PACKET_UDP_LENGTH, VERSION, 0) : admit;
            (PACKET_UDP_LENGTH, VERSION, _) : refuse_flags;
            (PACKET_UDP_LENGTH, _, _)       : refuse_version;
            default                         : refuse_length;
        }
    }
    // On Tofino, a state that ends early still acts, so these are states of their own and extract nothing.
    @dontmerge("ingress")
    state admit {
        ig_md.verdict = verdict_t.UNDECIDED;
        transition accept;
    }
    @dontmerge("ingress")
    state refuse_flags {
        ig_md.verdict = verdict_t.RESERVED_FLAGS;
        transition accept;
    }
    @dontmerge("ingress")
    state refuse_version {
        ig_md.verdict = verdict_t.BAD_VERSION;
        transition accept;
    }
    @dontmerge("ingress")
    state refuse_length {
        ig_md.verdict = verdict_t.BAD_LENGTH;
        transition accept;
    }
}

#endif
