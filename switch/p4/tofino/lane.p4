// One lane: a register and its four operations. Each operation leaves the new value in the packet.

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
            LANES_SET  : set();
            LANES_ADD  : add();
            LANES_OR   : bitwise_or();
            LANES_READ : read();
        }
        const default_action = NoAction();
        size = 4;
    }

    apply {
        operations.apply();
    }
}
