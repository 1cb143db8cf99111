// Every operator, on unsigned and signed numbers of odd widths; results go back where the packet came from.

#include <core.p4>
#include <v1model.p4>

header numbers_h { bit<8> op; bit<3> small; bit<13> odd; bit<24> shift; bit<64> a; bit<64> b; int<32> c; int<32> d; }
header results_h { bit<64> wide; bit<32> word; int<32> signed_; bit<7> seven; bit<1> flag; bit<48> mac; bit<8> path; }
struct headers_t { numbers_h numbers; results_h results; results_h copy; }
struct metadata_t { bit<32> x; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.numbers); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }
control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    action add_all() {
        hdr.results.wide = hdr.numbers.a + hdr.numbers.b;
        hdr.results.word = (bit<32>)hdr.numbers.a - (bit<32>)hdr.numbers.b;
        hdr.results.signed_ = hdr.numbers.c + hdr.numbers.d;
        hdr.results.seven = hdr.numbers.a[9:3] * hdr.numbers.b[6:0];
    }
    action saturate() {
        hdr.results.word = (bit<32>)hdr.numbers.a |+| (bit<32>)hdr.numbers.b;
        hdr.results.signed_ = hdr.numbers.c |-| hdr.numbers.d;
        hdr.results.seven = hdr.numbers.a[6:0] |-| hdr.numbers.b[6:0];
    }
    action bits() {
        hdr.results.wide = (hdr.numbers.a ^ hdr.numbers.b) | ~hdr.numbers.a;
        hdr.results.word = hdr.numbers.a[47:16] & hdr.numbers.b[31:0];
        hdr.results.mac = hdr.numbers.a[31:0] ++ hdr.numbers.b[15:0];
        hdr.results.seven = (bit<7>)(hdr.numbers.odd >> 6);
    }
    action shifts() {
        hdr.results.wide = hdr.numbers.a << hdr.numbers.shift[7:0];
        hdr.results.word = (bit<32>)(hdr.numbers.b >> hdr.numbers.shift[6:0]);
        hdr.results.mac = (bit<48>)hdr.numbers.a >> 5;
        hdr.results.seven = (bit<7>)hdr.numbers.small << 4;
    }
    action compare() {
        hdr.results.word = hdr.numbers.a > hdr.numbers.b ? (bit<32>)1 : 2;
        hdr.results.signed_ = hdr.numbers.c < hdr.numbers.d ? hdr.numbers.c : -hdr.numbers.d;
        hdr.results.flag = (bit<1>)(hdr.numbers.c <= 0 ? 1w1 : 0);
        hdr.results.wide[15:8] = hdr.numbers.a[7:0];
        if (hdr.numbers.odd == 77 || !(hdr.numbers.small != 3)) {
            hdr.results.path = 1;
        } else if (hdr.numbers.c >= hdr.numbers.d && hdr.numbers.a != hdr.numbers.b) {
            hdr.results.path = 2;
        } else {
            hdr.results.path = hdr.numbers.a & 7 == 5 ? 8w3 : 8w4;
        }
    }
    action copy_out() {
        hdr.results.wide = hdr.numbers.a * 10;
        hdr.copy = hdr.results;
        hdr.copy.path = 99;
        hdr.results.setInvalid();
    }
    table operations {
        key = { hdr.numbers.op: exact; }
        actions = { add_all; saturate; bits; shifts; compare; copy_out; NoAction; }
        const entries = { 0: add_all(); 1: saturate(); 2: bits(); 3: shifts(); 4: compare(); 5: copy_out(); }
        const default_action = NoAction();
    }
    apply {
        sm.egress_spec = sm.ingress_port;
        if (hdr.numbers.isValid()) {
            hdr.results.setValid();
            operations.apply();
            if (hdr.results.isValid() == hdr.copy.isValid()) { hdr.numbers.op = 0xff; }
        }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    apply { if (sm.packet_length > 60) { hdr.results.path = hdr.results.path + 128; } }
}
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
