// Longest-prefix routing with TTL and checksum, an ACL by ternary and range, an IPv6 path: two parser branches.

#include <core.p4>
#include <v1model.p4>

header ethernet_h { bit<48> dst; bit<48> src; bit<16> ether_type; }
header vlan_h { bit<3> pcp; bit<1> dei; bit<12> vid; bit<16> ether_type; }
header ipv4_h {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> total_length; bit<16> id; bit<3> flags; bit<13> fragment;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header ipv6_h {
    bit<4> version; bit<8> traffic_class; bit<20> flow; bit<16> payload; bit<8> next; bit<8> hops;
    bit<128> src; bit<128> dst;
}
header ports_h { bit<16> src; bit<16> dst; }

struct headers_t { ethernet_h ethernet; vlan_h vlan; ipv4_h ipv4; ipv6_h ipv6; ports_h ports; }
struct metadata_t { bit<8> class_; bit<128> last_dst; bit<1> denied; }

parser RouterParser(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            0x8100: parse_vlan;
            0x0800: parse_ipv4;
            0x86dd: parse_ipv6;
            default: accept;
        }
    }
    state parse_vlan {
        packet.extract(hdr.vlan);
        // Odd VLANs are not looked into, whatever they carry.
        transition select(hdr.vlan.vid, hdr.vlan.ether_type) {
            (1 &&& 1, _): accept;
            (_, 0x0800): parse_ipv4;
            (_, 0x86dd): parse_ipv6;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4 && hdr.ipv4.ihl == 5, error.HeaderTooShort);
        transition select(hdr.ipv4.protocol) {
            6: parse_ports;
            17: parse_ports;
            default: accept;
        }
    }
    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.next, packet.lookahead<bit<8>>()) {
            (6 &&& 0xee, _): parse_ports;
            (59, 0x80 &&& 0xf0): parse_ports;
            default: accept;
        }
    }
    state parse_ports { packet.extract(hdr.ports); transition accept; }
}

control RouterVerify(inout headers_t hdr, inout metadata_t md) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id, hdr.ipv4.flags,
              hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterIngress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets_and_bytes) route_hits;
    counter(4, CounterType.packets_and_bytes) classes;
    register<bit<48>>(512) last_source;
    register<bit<8>>(16) marks;

    action route(bit<9> port, bit<48> next_hop) {
        sm.egress_spec = port;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        route_hits.count();
    }
    action drop() { mark_to_drop(sm); }
    action route6(bit<9> port, bit<128> via) { sm.egress_spec = port; md.last_dst = hdr.ipv6.dst; hdr.ipv6.dst = via; }
    action deny(bit<8> class_) { md.class_ = class_; md.denied = 1; }
    action permit(bit<8> class_) { md.class_ = class_; }

    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { route; drop; }
        counters = route_hits;
        size = 64;
        default_action = drop();
    }
    table routes6 {
        key = { hdr.ipv6.dst: lpm; }
        actions = { route6; drop; }
        size = 8;
        const default_action = drop();
    }
    table acl {
        key = {
            hdr.ipv4.isValid(): exact @name("is_ipv4");
            hdr.ipv4.src: ternary @name("src");
            hdr.ports.dst: range @name("dst_port");
            hdr.vlan.vid: ternary @name("vid");
        }
        actions = { permit; deny; }
        const entries = {
            (true, 0x0a000000 &&& 0xff000000, 0..1023, _): deny(1);
            (true, _, 1000..1009, 100): deny(2);
            (true, 0x00000001 &&& 0x00000001, _, _): permit(3);
            (false, _, 80..80, _): deny(9);
        }
        default_action = permit(0);
    }
    table by_port {
        key = { sm.ingress_port: exact; hdr.ethernet.dst: exact; hdr.ethernet.ether_type: exact; }
        actions = { permit; NoAction; }
        size = 16;
        default_action = NoAction();
    }

    apply {
        if (sm.parser_error != error.NoError && hdr.ipv4.isValid()) {
            drop();
            exit;
        }
        last_source.write((bit<32>)sm.ingress_port, hdr.ethernet.src);
        acl.apply();
        if (md.denied == 1 || (hdr.ipv4.isValid() && (sm.checksum_error == 1 || hdr.ipv4.ttl < 2))) {
            drop();
        } else if (hdr.ipv4.isValid()) {
            routes.apply();
        } else if (hdr.ipv6.isValid()) {
            routes6.apply();
        } else {
            switch (by_port.apply().action_run) {
                permit: { sm.egress_spec = 7; }
                default: { drop(); }
            }
        }
        classes.count((bit<32>)md.class_);
        bit<8> mark;
        marks.read(mark, (bit<32>)(hdr.ethernet.src & 0x1f));
        marks.write((bit<32>)(hdr.ethernet.src & 0x1f), mark + 1);
    }
}

control RouterEgress(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        if (sm.egress_port == 4 && hdr.vlan.isValid()) {
            hdr.ethernet.ether_type = hdr.vlan.ether_type;
            hdr.vlan.setInvalid();
        }
    }
}

control RouterCompute(inout headers_t hdr, inout metadata_t md) {
    apply {
        update_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id, hdr.ipv4.flags,
              hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterDeparser(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(RouterParser(), RouterVerify(), RouterIngress(), RouterEgress(), RouterCompute(), RouterDeparser()) main;
