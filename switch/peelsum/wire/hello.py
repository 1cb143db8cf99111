"""The hello, by which a host attaches to a switch port that is a UDP socket, and the proof of a secret.

| from | datagram | meaning |
|---|---|---|
| host | empty | hello: make me the host behind this port |
| switch | 8 bytes | challenge: prove that you have the port's secret, and receive at your address |
| host | 8 bytes | proof: SipHash-2-4 of the challenge and 8 zero bytes, under the secret |
| switch | empty | you are the host behind this port |

No packet is so short, as its header alone has 16 bytes.
"""

from __future__ import annotations

import numpy as np

from peelsum.compiling import compiled
from peelsum.wire import PROOF_BYTES

_WORD = np.dtype("<u8")


def proof(secret: bytes, challenge: bytes) -> bytes:
    """Return the proof of a secret, 16 bytes, for a challenge, 8 bytes."""
    key, (word,) = np.frombuffer(secret, _WORD), np.frombuffer(challenge, _WORD)
    return int(siphash_2_4(key[0], key[1], word, np.uint64(0))).to_bytes(PROOF_BYTES, "little")


@compiled
def siphash_2_4(key0: np.uint64, key1: np.uint64, word0: np.uint64, word1: np.uint64) -> np.uint64:
    """Return SipHash-2-4 of 16 bytes under a key of 16 bytes, all as little-endian words of 64 bits.

    Without the key, its values cannot be predicted (Aumasson and Bernstein, 2012).
    """
    v0, v1 = key0 ^ np.uint64(0x736F6D6570736575), key1 ^ np.uint64(0x646F72616E646F6D)
    v2, v3 = key0 ^ np.uint64(0x6C7967656E657261), key1 ^ np.uint64(0x7465646279746573)
    for word in (word0, word1, np.uint64(16 << 56)):  # the last one has the length
        v3 ^= word
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3))
        v0 ^= word
    v2 ^= np.uint64(0xFF)
    v0, v1, v2, v3 = _round(*_round(*_round(*_round(v0, v1, v2, v3))))
    return v0 ^ v1 ^ v2 ^ v3


@compiled
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = _rotated(v1, 13) ^ v0, _rotated(v3, 16) ^ v2
    v0 = _rotated(v0, 32)
    v2, v0 = v2 + v1, v0 + v3
    v1, v3 = _rotated(v1, 17) ^ v2, _rotated(v3, 21) ^ v0
    return v0, v1, _rotated(v2, 32), v3


@compiled
def _rotated(word: np.uint64, bits: int) -> np.uint64:
    return np.uint64((word << np.uint64(bits)) | (word >> np.uint64(64 - bits)))
