"""Links that lose packets: a share of them at random, each way, by nftables.

A lossy link is two pairs with a bridge between them, and what enters the bridge is thinned out there. Where a
host sends, one drop would take a whole burst with it, or be told to the sender; where a switch receives, it
has seen the packet before nftables does.
"""

from __future__ import annotations

import subprocess

from peelsum.topology.errors import TopologyError

_PARTS = 1_000_000_000


def lose(share: float, *interfaces: str) -> None:
    """Drop a `share` (0 to 1) of the packets that come in by each interface of this namespace.

    Raises TopologyError where nftables or the kernel cannot, with the reason.
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
        raise TopologyError(f"loss {share:g}: refused by nftables: {reason}; leave it out")
