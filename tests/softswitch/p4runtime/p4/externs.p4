// Externs of v1model, each of which the packet's `command` uses.

#include <core.p4>
#include <v1model.p4>

header command_h {
    bit<8> command;
    bit<8> key;
    bit<16> flow;
    bit<32> low;
    bit<32> high;
    bit<64> result;
}

header tag_h {
    bit<16> tag;
    bit<16> label;
}

struct headers_t {
    command_h command;
    tag_h tag;
}

struct metadata_t {
    bit<2> color;
}

struct sighting_t {
    bit<16> flow;
    bit<9> port;
    bit<64> result;
}

const bit<8> DIGEST = 1;
const bit<8> METER = 2;
const bit<8> RANDOM = 3;
const bit<8> TRUNCATE = 4;
const bit<8> LOG = 5;
const bit<8> ASSERT = 6;
const bit<8> EGRESS_ASSERT = 7;

parser ExternsParser(
    packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard
) {
    value_set<bit<8>>(4) tagged_keys;

    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.key) {
            tagged_keys: parse_tag;
            default: accept;
        }
    }

    state parse_tag {
        packet.extract(hdr.tag);
        transition accept;
    }
}

control ExternsVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ExternsIngress(
    inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard
) {
    action_selector(HashAlgorithm.crc16, 16, 16) paths;
    action_profile(4) hops;
    meter(8, MeterType.packets) police;
    direct_meter<bit<2>>(MeterType.bytes) shape;

    action send(bit<9> port) {
        standard.egress_spec = port;
    }

    action send_marked(bit<9> port, bit<72> mark) {
        standard.egress_spec = port;
        hdr.command.low = (bit<32>) mark;
        hdr.command.high = (bit<32>) (mark >> 40);
    }

    action metered(bit<9> port) {
        standard.egress_spec = port;
        shape.read(meta.color);
        hdr.command.result = (bit<64>) meta.color;
    }

    table balanced {
        key = {
            hdr.command.key: exact;
            hdr.command.flow: selector;
        }
        actions = { send; send_marked; NoAction; }
        implementation = paths;
        size = 16;
        support_timeout = true;
    }

    table also_balanced {
        key = {
            hdr.command.low: exact;
            hdr.command.flow: selector;
        }
        actions = { send; send_marked; NoAction; }
        implementation = paths;
        size = 16;
    }

    table indirect {
        key = { hdr.command.flow: ternary; }
        actions = { send; send_marked; NoAction; }
        implementation = hops;
        size = 16;
    }

    table shaped {
        key = { hdr.command.flow: exact; }
        actions = { metered; NoAction; }
        default_action = NoAction;
        meters = shape;
        size = 8;
    }

    apply {
        standard.egress_spec = 1;
        if (hdr.command.command == DIGEST) {
            digest<sighting_t>(1, { hdr.command.flow, standard.ingress_port, hdr.command.result });
        } else if (hdr.command.command == METER) {
            police.execute_meter((bit<32>) hdr.command.key, meta.color);
            hdr.command.result = (bit<64>) meta.color;
        } else if (hdr.command.command == RANDOM) {
            bit<32> value;
            random(value, hdr.command.low, hdr.command.high);
            hdr.command.result = (bit<64>) value;
        } else if (hdr.command.command == TRUNCATE) {
            truncate(hdr.command.low);
        } else if (hdr.command.command == LOG) {
            log_msg("flow {} of \\{{}\\}", { hdr.command.flow, hdr.command.result });
        } else if (hdr.command.command == ASSERT) {
            assert(hdr.command.low > 3);
        } else {
            if (!balanced.apply().hit) {
                if (!also_balanced.apply().hit) {
                    indirect.apply();
                }
            }
            shaped.apply();
        }
    }
}

control ExternsEgress(
    inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard
) {
    apply {
        if (hdr.command.command == EGRESS_ASSERT) {
            assume(standard.egress_rid != 2);
        }
    }
}

control ExternsUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ExternsDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.tag);
        packet.emit(hdr.command);
    }
}

V1Switch(
    ExternsParser(), ExternsVerify(), ExternsIngress(), ExternsEgress(), ExternsUpdate(), ExternsDeparser()
) main;
