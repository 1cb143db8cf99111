"""The switch's ports: UDP sockets, network interfaces, paced sending, pcap files."""
