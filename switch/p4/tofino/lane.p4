// One lane: a register and its four operations. Each operation leaves the new value in the packet.

#ifndef PEELSUM_TOFINO_LANE_P4_
#define PEELSUM_TOFINO_LANE_P4_

control Lane(in lane_op_t op, in bit<32> slot_index, inout bit<32> lane) {
    Register<bit<32>, slot_t>(SLOTS) sums;

    RegisterAction<bit<32>, slot_t, bit<32>>(sums) set_sum = {
        void apply(inout bit<32> value, out bit<32> sum) {
            value = lane;
            sum = value;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(sums) add_to_sum = {
        void apply(inout bit<32> value, out bit<32> sum) {
            value = value + lane;
            sum = value;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(sums) or_into_sum = {
        void apply(inout bit<32> value, out bit<32> sum) {
            value = value | lane;
            sum = value;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(sums) read_sum = {
        void apply(inout bit<32> value, out bit<32> sum) {
            sum = value;
        }
    };

    action set() {
        lane = set_sum.execute((slot_t)slot_index);
    }

    action add() {
        lane = add_to_sum.execute((slot_t)slot_index);
    }

    action bitwise_or() {
        lane = or_into_sum.execute((slot_t)slot_index);
    }

    action read() {
        lane = read_sum.execute((slot_t)slot_index);
    }

    table operations {
        key = { op : exact @name("op"); }
        actions = { set; add; bitwise_or; read; @defaultonly NoAction; }
        const entries = {
            lane_op_t.SET  : set();
            lane_op_t.ADD  : add();
            lane_op_t.OR   : bitwise_or();
            lane_op_t.READ : read();
        }
        const default_action = NoAction();
        size = 4;
    }

    apply {
        operations.apply();
    }
}

#endif
