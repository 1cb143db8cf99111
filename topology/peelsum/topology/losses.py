"""Drop a random share of a link's packets in each direction, with nftables.

A lossy link is two veth pairs joined by a bridge, and packets are dropped on entering the bridge. A drop at
the sending host could lose a whole burst or be reported to the sender. A drop at the receiving switch would
be too late: the switch reads packets before nftables sees them.
"""

from __future__ import annotations

import subprocess

from peelsum.topology.errors import TopologyError

_PARTS = 1_000_000_000


def lose(share: float, *interfaces: str) -> None:
    """Drop a `share` (0 to 1) of the packets that enter each interface of this namespace.

    Raises TopologyError, with the reason, if nftables is missing or fails.
    """
    chains = "\n".join(
        f'chain c{number} {{ type filter hook ingress device "{name}" priority 0; policy accept;\n'
        f"numgen random mod {_PARTS} < {max(1, round(share * _PARTS))} drop\n}}"
        for number, name in enumerate(interfaces)
    )
    rules = f"table netdev peelsum-{interfaces[0]} {{\n{chains}\n}}\n"
    try:
        done = subprocess.run(["nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise TopologyError(f"loss {share:g}: nft: not found on PATH; install nftables") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"status {done.returncode}"
        raise TopologyError(f"loss {share:g}: nftables failed: {reason}; run without loss")
