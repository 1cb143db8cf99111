// Headers of variable size, header unions, loops, and numbers beyond 64 bits: programs that are interpreted.

#include <core.p4>
#include <v1model.p4>

header lead_h {
    bit<8> skip;
    bit<8> count;
    bit<16> option_bits;
    bit<16> sum;
    bit<32> crc;
}

header options_h {
    bit<4> first;
    varbit<64> rest;
    bit<4> last;
}

header byte_h {
    bit<8> kind;
    bit<8> value;
}

header word_h {
    bit<8> kind;
    bit<32> value;
}

header_union value_u {
    byte_h byte;
    word_h word;
}

header wide_h {
    bit<96> a;
    int<96> b;
    bit<96> stored;
    bit<96> less;
    bit<128> product;
    bit<128> shifted;
}

struct headers_t {
    lead_h lead;
    options_h options;
    options_h copied;
    value_u[3] values;
    wide_h wide;
}

struct metadata_t {
    bit<8> left;
}

parser VariableParser(
    packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard
) {
    state start {
        packet.extract(hdr.lead);
        packet.advance((bit<32>) hdr.lead.skip);
        packet.extract(hdr.options, (bit<32>) hdr.lead.option_bits);
        meta.left = hdr.lead.count;
        transition next_value;
    }

    state next_value {
        transition select(meta.left, packet.lookahead<bit<8>>()) {
            (0, _): wide;
            (_, 1): one_byte;
            default: one_word;
        }
    }

    state one_byte {
        packet.extract(hdr.values.next.byte);
        meta.left = meta.left - 1;
        transition next_value;
    }

    state one_word {
        packet.extract(hdr.values.next.word);
        meta.left = meta.left - 1;
        transition next_value;
    }

    state wide {
        packet.extract(hdr.wide);
        transition accept;
    }
}

control VariableVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control VariableIngress(
    inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard
) {
    register<bit<96>>(4) totals;

    action triangle() {
        bit<16> total = 0;
        for (bit<16> i = 1; i <= (bit<16>) hdr.lead.count; i = i + 1) {
            total = total + i;
        }
        hdr.lead.sum = total;
    }

    action compute() {
        bit<96> total;
        totals.read(total, 3);
        totals.write(3, total + hdr.wide.a);
        hdr.wide.stored = total;
        hdr.wide.less = hdr.wide.a < (bit<96>) hdr.wide.b ? 96w1 : 0;
        hdr.wide.product = (bit<128>) hdr.wide.a * 128w0x1_0000_0001;
        hdr.wide.shifted = (bit<128>) (int<128>) (hdr.wide.b >> 70);
    }

    apply {
        standard.egress_spec = 9;
        triangle();
        compute();
        if (hdr.options.last == 5) {
            hdr.copied = hdr.options;
            hdr.copied.last = 6;
        }
        if (hdr.values[0].byte.isValid()) {
            bit<32> value = (bit<32>) hdr.values[0].byte.value;
            hdr.values[0].word.setValid();
            hdr.values[0].word.kind = 2;
            hdr.values[0].word.value = value;
        }
        if (hdr.lead.count == 3) {
            hdr.values.pop_front(1);
        }
    }
}

control VariableEgress(
    inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard
) {
    apply {
        if (hdr.lead.skip == 8) {
            hdr.lead.sum = hdr.lead.sum + (bit<16>) standard.packet_length;
        }
    }
}

control VariableUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            true, { hdr.options.first, hdr.options.rest, hdr.options.last, hdr.wide.a },
            hdr.lead.crc, HashAlgorithm.crc32);
        update_checksum_with_payload(
            hdr.lead.skip != 8, { hdr.lead.count, hdr.wide.a }, hdr.lead.sum, HashAlgorithm.csum16);
    }
}

control VariableDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.lead);
        packet.emit(hdr.options);
        packet.emit(hdr.copied);
        packet.emit(hdr.values);
        packet.emit(hdr.wide);
    }
}

V1Switch(
    VariableParser(), VariableVerify(), VariableIngress(), VariableEgress(), VariableUpdate(),
    VariableDeparser()
) main;
