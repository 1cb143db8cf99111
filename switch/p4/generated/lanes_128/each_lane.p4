// Generated from peelsum.wire by `peelsum switch compile`; edit that instead.

// UDP length of a packet: 8 bytes of UDP header, then 528 of ours.
const bit<16> PACKET_UDP_LENGTH = 536;

#define EACH_LANE(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) \
    DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) \
    DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23) \
    DO(24) DO(25) DO(26) DO(27) DO(28) DO(29) DO(30) DO(31) \
    DO(32) DO(33) DO(34) DO(35) DO(36) DO(37) DO(38) DO(39) \
    DO(40) DO(41) DO(42) DO(43) DO(44) DO(45) DO(46) DO(47) \
    DO(48) DO(49) DO(50) DO(51) DO(52) DO(53) DO(54) DO(55) \
    DO(56) DO(57) DO(58) DO(59) DO(60) DO(61) DO(62) DO(63) \
    DO(64) DO(65) DO(66) DO(67) DO(68) DO(69) DO(70) DO(71) \
    DO(72) DO(73) DO(74) DO(75) DO(76) DO(77) DO(78) DO(79) \
    DO(80) DO(81) DO(82) DO(83) DO(84) DO(85) DO(86) DO(87) \
    DO(88) DO(89) DO(90) DO(91) DO(92) DO(93) DO(94) DO(95) \
    DO(96) DO(97) DO(98) DO(99) DO(100) DO(101) DO(102) DO(103) \
    DO(104) DO(105) DO(106) DO(107) DO(108) DO(109) DO(110) DO(111) \
    DO(112) DO(113) DO(114) DO(115) DO(116) DO(117) DO(118) DO(119) \
    DO(120) DO(121) DO(122) DO(123) DO(124) DO(125) DO(126) DO(127)
