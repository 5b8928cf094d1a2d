r"""Masks: pseudorandom numbers mod 2^64 that cancel in the sum over all members, and in no other.

Members i < j derive one stream from their pair's secret and the tag. i adds it, j subtracts it. So

.. math:: \sum_i \Bigl(x_i + \sum_{j>i} m_{ij} - \sum_{j<i} m_{ji}\Bigr) = \sum_i x_i \pmod{2^{64}},

and any sum that lacks one of them is, for whoever knows no pair's secret, indistinguishable from random bits.
"""

from collections.abc import Mapping

import numpy as np

from sfumato.protocol.consortium import LABEL
from sfumato.vault.closed import closed
from sfumato.vault.sealed.identity import primitives


def pair_key(secret: bytes, salt: bytes, one: int, other: int) -> bytes:
    """HKDF-SHA256 of a pair's X25519 secret, bound to the keyset and to who they are."""
    crypto = primitives()
    low, high = sorted((one, other))
    info = f"{LABEL} pair {low} {high}".encode()
    return bytes(crypto.hkdf.HKDF(crypto.hashes.SHA256(), 32, salt, info).derive(secret))


def stream(pair: bytes, tag: bytes, count: int) -> np.ndarray:
    """`count` numbers of 64 bits: ChaCha20 under a key of this pair and this tag, which is used for nothing else."""
    crypto = primitives()
    key = crypto.hkdf.HKDFExpand(crypto.hashes.SHA256(), 32, tag).derive(pair)
    encryptor = crypto.Cipher(crypto.algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8")


@closed("keys of masks")
class Masks:
    """One member's side of all its pairs.

    Parameters
    ----------
    member
        Its place on the roster.
    pairs
        The key shared with each other member, by place.
    """

    def __init__(self, member: int, pairs: Mapping[int, bytes]) -> None:
        self._member, self._pairs = member, dict(pairs)

    def of(self, tag: bytes, count: int) -> np.ndarray:
        """What this member adds to its numbers under a tag, mod 2^64."""
        total = np.zeros(count, np.uint64)
        for other, pair in self._pairs.items():
            if other > self._member:
                total += stream(pair, tag, count)
            else:
                total -= stream(pair, tag, count)
        return total


def masked(numbers: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Numbers under a mask, mod 2^64, as signed ones."""
    return (np.asarray(numbers, np.int64).view(np.uint64) + mask).view(np.int64)
