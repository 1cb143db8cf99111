"""Carries frames between the switch and the world: UDP sockets, network interfaces, pcap files."""
