"""What a program is and does: traces of packets, and graphs."""
