// Numbers of more than 64 bits: looked ahead to, cut into fields, matched, shifted, masked and compared.

#include <core.p4>
#include <v1model.p4>

header calc_h { bit<8> p; bit<8> four; bit<8> ver; bit<8> op; bit<32> a; bit<32> b; bit<40> c; }
header wide_h { bit<8> op; bit<8> mark; bit<128> x; bit<128> y; bit<96> z; bit<32> n; }
struct headers_t { calc_h calc; wide_h wide; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        transition select(packet.lookahead<calc_h>().p, packet.lookahead<calc_h>().ver, packet.lookahead<calc_h>().b) {
            (0x50, 1, 0x01020304): parse_calc;
            default: parse_wide;
        }
    }
    state parse_calc { packet.extract(hdr.calc); transition accept; }
    state parse_wide {
        packet.extract(hdr.wide);
        transition select(hdr.wide.x) {
            0x0123456789abcdef0011223344556677: mark_one;
            0x80000000000000000000000000000001 &&& 0xf000000000000000000000000000000f: mark_two;
            default: accept;
        }
    }
    state mark_one { hdr.wide.mark = 1; transition accept; }
    state mark_two { hdr.wide.mark = 2; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action set(bit<128> x) {
        hdr.wide.x = x;
        hdr.wide.n = (bit<32>)x;
    }
    table given {
        key = { hdr.wide.op: exact; }
        actions = { set; NoAction; }
        default_action = NoAction();
    }
    apply {
        sm.egress_spec = 1;
        if (hdr.calc.isValid()) {
            hdr.calc.a = hdr.calc.a + 1;
        } else if (hdr.wide.op == 1) {
            hdr.wide.y = hdr.wide.x & hdr.wide.y;
        } else if (hdr.wide.op == 2) {
            hdr.wide.y = (hdr.wide.x >> 100) | (hdr.wide.y << 28);
        } else if (hdr.wide.op == 3) {
            hdr.wide.x = ~hdr.wide.x ^ hdr.wide.y;
            hdr.wide.z = ~hdr.wide.z;
        } else if (hdr.wide.op == 4) {
            if (hdr.wide.x == hdr.wide.y) { hdr.wide.n = 1; }
            if (hdr.wide.z != 0x112233445566778899aabbcc) { hdr.wide.n = hdr.wide.n + 2; }
        } else if (hdr.wide.op == 5) {
            hdr.wide.z = (bit<96>)(hdr.wide.x >> 16);
            hdr.wide.n = (bit<32>)(hdr.wide.y >> 48);
        } else if (hdr.wide.op == 6) {
            hdr.wide.y = (bit<128>)hdr.wide.z;
            hdr.wide.x = hdr.wide.x << 64;
            hdr.wide.z = hdr.wide.z << 1;
            hdr.wide.n = (bit<32>)hdr.wide.z;
        } else if (hdr.wide.op == 7) {
            hdr.wide.x[99:60] = hdr.wide.y[39:0];
        }
        given.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
