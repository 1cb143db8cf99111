// The number of slots, as the width of their index.

#ifndef PEELSUM_TOFINO_REGISTERS_P4_
#define PEELSUM_TOFINO_REGISTERS_P4_

const int SLOT_BITS = 14;
typedef bit<SLOT_BITS> slot_t;

#endif
