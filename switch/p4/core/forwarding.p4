// Forward other traffic. IPv4 packets with a route are routed; other frames are bridged. VLAN-tagged frames
// and UDP packets with IPv4 options are dropped.

#ifndef PEELSUM_CORE_FORWARDING_P4_
#define PEELSUM_CORE_FORWARDING_P4_

control Forwarding(inout headers_t hdr, inout ingress_metadata_t ig_md) {
    action forward(port_t port) {
        ig_md.direction = direction_t.ACROSS;
        ig_md.verdict = verdict_t.FORWARDED;
        ig_md.egress_port = port;
    }

    // To every port of a multicast group, for broadcasts such as ARP's.
    action flood(bit<16> group) {
        ig_md.direction = direction_t.ACROSS;
        ig_md.verdict = verdict_t.FORWARDED;
        ig_md.group = group;
        ig_md.multicast = 1;
    }

    action route(port_t port, mac_t src_mac, mac_t dst_mac) {
        forward(port);
        hdr.ethernet.src_mac = src_mac;
        hdr.ethernet.dst_mac = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    table routes {
        key = { hdr.ipv4.dst_ip : lpm @name("dst_ip"); }
        actions = { route; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    table bridge {
        key = { hdr.ethernet.dst_mac : exact @name("dst_mac"); }
        actions = { forward; flood; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    apply {
        // The parser skips frames with IPv4 options or VLAN tags, but a host accepts UDP after options, and tags
        // of VLAN 0. Peelsum packets in such frames would pass without admission, so they are dropped. Other packets
        // with options are bridged and not routed.
        bit<1> hidden_udp = 0;
        if (hdr.ipv4.isValid() && hdr.ipv4.ihl != IPV4_WORDS) {
            if (hdr.ipv4.protocol == PROTOCOL_UDP) {
                hidden_udp = 1;
            }
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
            routes.apply();
        }
        if (hdr.ethernet.ether_type == ETHERTYPE_VLAN || hdr.ethernet.ether_type == ETHERTYPE_SERVICE_VLAN) {
            hidden_udp = 1;
        }
        if (ig_md.direction == direction_t.NOWHERE && hidden_udp == 0 && hdr.ethernet.isValid()) {
            bridge.apply();
        }
    }
}

#endif
