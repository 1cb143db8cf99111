// Generated from peelsum.wire by `peelsum switch compile`; edit that instead.

control Lanes(in lane_op_t op, in bit<32> slot_index, inout lanes_h lanes) {
    Lane() lane_0;
    Lane() lane_1;
    Lane() lane_2;
    Lane() lane_3;
    Lane() lane_4;
    Lane() lane_5;
    Lane() lane_6;
    Lane() lane_7;
    Lane() lane_8;
    Lane() lane_9;
    Lane() lane_10;
    Lane() lane_11;
    Lane() lane_12;
    Lane() lane_13;
    Lane() lane_14;
    Lane() lane_15;
    Lane() lane_16;
    Lane() lane_17;
    Lane() lane_18;
    Lane() lane_19;
    Lane() lane_20;
    Lane() lane_21;
    Lane() lane_22;
    Lane() lane_23;
    Lane() lane_24;
    Lane() lane_25;
    Lane() lane_26;
    Lane() lane_27;
    Lane() lane_28;
    Lane() lane_29;
    Lane() lane_30;
    Lane() lane_31;

    apply {
        lane_0.apply(op, slot_index, lanes.v0);
        lane_1.apply(op, slot_index, lanes.v1);
        lane_2.apply(op, slot_index, lanes.v2);
        lane_3.apply(op, slot_index, lanes.v3);
        lane_4.apply(op, slot_index, lanes.v4);
        lane_5.apply(op, slot_index, lanes.v5);
        lane_6.apply(op, slot_index, lanes.v6);
        lane_7.apply(op, slot_index, lanes.v7);
        lane_8.apply(op, slot_index, lanes.v8);
        lane_9.apply(op, slot_index, lanes.v9);
        lane_10.apply(op, slot_index, lanes.v10);
        lane_11.apply(op, slot_index, lanes.v11);
        lane_12.apply(op, slot_index, lanes.v12);
        lane_13.apply(op, slot_index, lanes.v13);
        lane_14.apply(op, slot_index, lanes.v14);
        lane_15.apply(op, slot_index, lanes.v15);
        lane_16.apply(op, slot_index, lanes.v16);
        lane_17.apply(op, slot_index, lanes.v17);
        lane_18.apply(op, slot_index, lanes.v18);
        lane_19.apply(op, slot_index, lanes.v19);
        lane_20.apply(op, slot_index, lanes.v20);
        lane_21.apply(op, slot_index, lanes.v21);
        lane_22.apply(op, slot_index, lanes.v22);
        lane_23.apply(op, slot_index, lanes.v23);
        lane_24.apply(op, slot_index, lanes.v24);
        lane_25.apply(op, slot_index, lanes.v25);
        lane_26.apply(op, slot_index, lanes.v26);
        lane_27.apply(op, slot_index, lanes.v27);
        lane_28.apply(op, slot_index, lanes.v28);
        lane_29.apply(op, slot_index, lanes.v29);
        lane_30.apply(op, slot_index, lanes.v30);
        lane_31.apply(op, slot_index, lanes.v31);
    }
}
