// Fields that lie across bytes and words: extracted, changed, copied, summed up, and put back.

#include <core.p4>
#include <v1model.p4>

header wide_h {
    bit<8> op; bit<3> a; bit<64> b; bit<5> c; bit<1> d; bit<63> e; bit<4> h; bit<124> i; bit<7> j; bit<57> k; bit<64> l;
    bit<1> m; bit<64> n; bit<7> o; bit<16> sum;
}
// Not looked at: kept in as few variables as they fit.
header rest_h { bit<7> a; bit<50> b; bit<7> c; bit<33> d; bit<31> e; bit<1> f; bit<15> g; }
struct headers_t { wide_h wide; rest_h rest; }
struct metadata_t { bit<124> i; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.wide);
        packet.extract(hdr.rest);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t md) {
    apply {
        verify_checksum(
            hdr.wide.op != 0,
            {
                16w0x8001, hdr.wide.a, hdr.wide.b, hdr.wide.c, hdr.wide.d, hdr.wide.e, hdr.wide.h, hdr.wide.i, hdr.wide.j,
                hdr.wide.k, hdr.wide.l
            },
            hdr.wide.sum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = (bit<9>)sm.checksum_error + 1;
        if (hdr.wide.op == 2) {
            hdr.wide.a = hdr.wide.a + 1;
            hdr.wide.b = hdr.wide.b + 1;
            hdr.wide.c = hdr.wide.c - 1;
            hdr.wide.d = hdr.wide.d ^ 1;
            hdr.wide.e = hdr.wide.e << 1;
        } else if (hdr.wide.op == 3) {
            md.i = hdr.wide.i;
            hdr.wide.i = 124w0xfedcba9876543210123456789abcdef;
        } else if (hdr.wide.op == 4) {
            hdr.wide.e = hdr.wide.e >> 62;
            hdr.wide.l = hdr.wide.b >> 63;
            hdr.wide.b = hdr.wide.b << 63;
        } else if (hdr.wide.op == 5) {
            hdr.wide.j = hdr.wide.j + 1;
            hdr.wide.k = hdr.wide.k + hdr.wide.k;
            hdr.wide.l = ~hdr.wide.l;
            hdr.wide.m = ~hdr.wide.m;
            hdr.wide.n = hdr.wide.n - 1;
            hdr.wide.o = hdr.wide.o + 1;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t md) {
    apply {
        update_checksum(
            hdr.wide.op > 1,
            {
                16w0x8001, hdr.wide.a, hdr.wide.b, hdr.wide.c, hdr.wide.d, hdr.wide.e, hdr.wide.h, hdr.wide.i, hdr.wide.j,
                hdr.wide.k, hdr.wide.l
            },
            hdr.wide.sum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
