// Twelve lanes in the ways a program may write them: p4c gives each its own temporaries.

#include <core.p4>
#include <v1model.p4>

header op_h { bit<8> op; bit<32> slot; }
header lanes_h {
    bit<32> v0; bit<32> v1; bit<32> v2; bit<32> v3; bit<32> v4; bit<32> v5;
    bit<32> v6; bit<32> v7; bit<32> v8; bit<32> v9; bit<32> v10; bit<32> v11;
}
header bytes_h { bit<8> b0; bit<8> b1; bit<8> b2; bit<8> b3; bit<8> b4; bit<8> b5; }
struct headers_t { op_h op; lanes_h lanes; bytes_h bytes; }
struct metadata_t { bit<32> total; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.op); packet.extract(hdr.lanes); packet.extract(hdr.bytes); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t md) { apply { } }

control Lane(inout bit<32> v, in bit<32> slot, in bit<8> op) {
    register<bit<32>>(16) cells;
    apply {
        bit<32> held;
        cells.read(held, slot & 0x1f);
        if (op == 1) { v = v + held; }
        else if (op == 2) { v = v | held; }
        else if (op == 3) { v = held; }
        cells.write(slot & 0x1f, v);
    }
}

control I(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) {
    Lane() lane_0; Lane() lane_1; Lane() lane_2; Lane() lane_3; Lane() lane_4; Lane() lane_5;
    Lane() lane_6; Lane() lane_7; Lane() lane_8; Lane() lane_9; Lane() lane_10; Lane() lane_11;
    register<bit<8>>(16) count_0; register<bit<8>>(16) count_1; register<bit<8>>(16) count_2;
    register<bit<8>>(16) count_3; register<bit<8>>(16) count_4; register<bit<8>>(16) count_5;

    action count_bytes() {
        bit<8> t0; bit<8> t1; bit<8> t2; bit<8> t3; bit<8> t4; bit<8> t5;
        count_0.read(t0, hdr.op.slot); count_0.write(hdr.op.slot, t0 + hdr.bytes.b0);
        count_1.read(t1, hdr.op.slot); count_1.write(hdr.op.slot, t1 + hdr.bytes.b1);
        count_2.read(t2, hdr.op.slot); count_2.write(hdr.op.slot, t2 + hdr.bytes.b2);
        count_3.read(t3, hdr.op.slot); count_3.write(hdr.op.slot, t3 + hdr.bytes.b3);
        count_4.read(t4, hdr.op.slot); count_4.write(hdr.op.slot, t4 + hdr.bytes.b4);
        count_5.read(t5, hdr.op.slot); count_5.write(hdr.op.slot, t5 + hdr.bytes.b5);
        hdr.bytes.b0 = t5; hdr.bytes.b1 = t4; hdr.bytes.b2 = t3;
        hdr.bytes.b3 = t2; hdr.bytes.b4 = t1; hdr.bytes.b5 = t0;
    }
    // A running sum: each step needs the one before.
    action scan() {
        hdr.lanes.v1 = hdr.lanes.v1 + hdr.lanes.v0; hdr.lanes.v2 = hdr.lanes.v2 + hdr.lanes.v1;
        hdr.lanes.v3 = hdr.lanes.v3 + hdr.lanes.v2; hdr.lanes.v4 = hdr.lanes.v4 + hdr.lanes.v3;
        hdr.lanes.v5 = hdr.lanes.v5 + hdr.lanes.v4; hdr.lanes.v6 = hdr.lanes.v6 + hdr.lanes.v5;
        hdr.lanes.v7 = hdr.lanes.v7 + hdr.lanes.v6; hdr.lanes.v8 = hdr.lanes.v8 + hdr.lanes.v7;
        md.total = hdr.lanes.v8;
    }
    // Backwards, and every second one.
    action reverse() {
        hdr.lanes.v11 = hdr.lanes.v0; hdr.lanes.v9 = hdr.lanes.v1; hdr.lanes.v7 = hdr.lanes.v2;
        hdr.lanes.v5 = hdr.lanes.v3; hdr.lanes.v3 = hdr.lanes.v4; hdr.lanes.v1 = hdr.lanes.v5;
        hdr.op.slot = hdr.lanes.v3;
    }
    apply {
        sm.egress_spec = 1;
        if (hdr.bytes.isValid()) {
            if (hdr.op.op == 9) { count_bytes(); }
            else if (hdr.op.op == 8) { scan(); }
            else if (hdr.op.op == 7) { reverse(); }
            else {
                lane_0.apply(hdr.lanes.v0, hdr.op.slot, hdr.op.op);
                lane_1.apply(hdr.lanes.v1, hdr.op.slot, hdr.op.op);
                lane_2.apply(hdr.lanes.v2, hdr.op.slot, hdr.op.op);
                lane_3.apply(hdr.lanes.v3, hdr.op.slot, hdr.op.op);
                lane_4.apply(hdr.lanes.v4, hdr.op.slot, hdr.op.op);
                lane_5.apply(hdr.lanes.v5, hdr.op.slot, hdr.op.op);
                lane_6.apply(hdr.lanes.v6, hdr.op.slot, hdr.op.op);
                lane_7.apply(hdr.lanes.v7, hdr.op.slot, hdr.op.op);
                lane_8.apply(hdr.lanes.v8, hdr.op.slot, hdr.op.op);
                lane_9.apply(hdr.lanes.v9, hdr.op.slot, hdr.op.op);
                lane_10.apply(hdr.lanes.v10, hdr.op.slot, hdr.op.op);
                lane_11.apply(hdr.lanes.v11, hdr.op.slot, hdr.op.op);
            }
        }
    }
}
control E(inout headers_t hdr, inout metadata_t md, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t md) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
