// The headers of a frame, and the metadata that ingress keeps about it.

#ifndef PEELSUM_CORE_HEADERS_P4_
#define PEELSUM_CORE_HEADERS_P4_

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88a8;
const bit<4>  IPV4_WORDS = 5;  // without options
const bit<8>  PROTOCOL_UDP = 17;

header ethernet_h {
    mac_t   dst_mac;
    mac_t   src_mac;
    bit<16> ether_type;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<6>  dscp;
    bit<2>  ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    ipv4_t  src_ip;
    ipv4_t  dst_ip;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// What the checksum of `hdr.ipv4` covers.
#define IPV4_CHECKSUM_FIELDS { \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_length, \
    hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, \
    hdr.ipv4.protocol, hdr.ipv4.src_ip, hdr.ipv4.dst_ip }

struct headers_t {
    ethernet_h ethernet;
    ipv4_h     ipv4;
    udp_h      udp;
    peelsum_h  peelsum;
    lanes_h    lanes;
}

struct ingress_metadata_t {
    // From the parser and the architecture.
    verdict_t    verdict;
    port_t       ingress_port;
    bit<32>      now;            // ticks
    // From admission.
    role_t       role;
    bit<16>      generation;
    bit<16>      worker_id;
    bit<32>      worker_mask;
    bit<32>      expected_mask;
    bit<32>      other_masks;    // expected, except this packet's worker
    bit<32>      slot_index;     // only its low SLOT_BITS are used
    bit<32>      slot_tag;
    port_t       up_port;
    bit<16>      group;
    kind_t       sum_kind;       // the kind of a complete sum that goes up
    bit<1>       sum_spine;      // its flag_spine
    bit<1>       spine;          // 1 if this switch's slots count racks
    bit<1>       for_racks;      // 1 if a spine's switch passes this on to its racks
    // From the slot.
    ownership_t  ownership;
    membership_t membership;
    bit<32>      overlap;        // this packet's worker, if the slot already held it
    bit<32>      worker_bitmap;  // the slot's workers and this packet's
    marks_t      marks;          // the slot's flags, combined with this packet's
    lane_op_t    lane_op;
    // To the architecture.
    direction_t  direction;
    port_t       egress_port;    // if `multicast` is 0
    bit<1>       multicast;
}

#endif
