// Hashes over fields of headers that may not be there, over metadata of odd widths, and over constants.

#include <core.p4>
#include <v1model.p4>

header ask_h { bit<8> op; bit<8> more; bit<64> base; bit<64> size; bit<48> a; bit<16> b; bit<128> c; }
header more_h { bit<24> x; bit<8> y; }
header told_h { bit<64> value; bit<9> small; bit<7> rest; }
struct headers_t { told_h told; ask_h ask; more_h more; }
struct metadata_t { bit<9> nine; bit<3> three; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        transition select(hdr.ask.more) { 1: more; default: accept; }
    }
    state more { packet.extract(hdr.more); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.ask.op == 8) { sm.mcast_grp = 3; }
        hdr.told.setValid();
        md.nine = (bit<9>)hdr.ask.b;
        md.three = (bit<3>)(hdr.ask.b >> 9);
        if (hdr.ask.op == 0) {
            hash(hdr.told.value, HashAlgorithm.crc16, hdr.ask.base, { hdr.ask.a, hdr.more.x, hdr.ask.c }, hdr.ask.size);
        } else if (hdr.ask.op == 1) {
            hash(hdr.told.value, HashAlgorithm.crc32, hdr.ask.base, { hdr.ask.a, hdr.more.x, hdr.ask.c }, hdr.ask.size);
        } else if (hdr.ask.op == 2) {
            hash(hdr.told.value, HashAlgorithm.csum16, hdr.ask.base, { hdr.ask.a, hdr.more.x, hdr.ask.c }, hdr.ask.size);
        } else if (hdr.ask.op == 3) {
            hash(hdr.told.value, HashAlgorithm.xor16, hdr.ask.base, { hdr.ask.a, hdr.more.x, hdr.ask.c }, hdr.ask.size);
        } else if (hdr.ask.op == 4) {
            hash(hdr.told.value, HashAlgorithm.identity, hdr.ask.base, { hdr.ask.a, hdr.more.x, hdr.ask.c }, hdr.ask.size);
        } else if (hdr.ask.op == 5) {
            hash(hdr.told.value, HashAlgorithm.crc32, 64w0, { md.nine, 16w0x1234, md.three }, 64w0x100000000);
        } else if (hdr.ask.op == 6) {
            hash(hdr.told.small, HashAlgorithm.crc16, 9w500, { hdr.ask.a }, 9w100);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply {
        if (hdr.ask.op == 7) {
            hash(hdr.ask.b, HashAlgorithm.xor16, 16w0, { hdr.ask.b, sm.egress_rid }, 32w65536);
        } else if (hdr.ask.op == 8 && sm.egress_rid == 21) {
            hash(hdr.ask.b, HashAlgorithm.crc16, 16w0, { hdr.ask.a }, 32w65536);
        }
    }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
