"""Many small arrays as one row of 64-bit integers, reals by their bits.

Handing an array to a compiled call, or taking one out of it, costs about as much as a small round computes; one of each does. So
does JAX's switch to 64 bits: `x64` throws it only where it is off.
"""

import struct
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array: TypeAlias = Any

_AS_IT_IS: AbstractContextManager[Any] = nullcontext()


def x64() -> AbstractContextManager[Any]:
    """64 bits within: as it is where they are on for the whole process, as in a node's."""
    return _AS_IT_IS if jax.config.jax_enable_x64 else jax.enable_x64(True)  # type: ignore[attr-defined]


def pack(*parts: np.ndarray | np.float64 | int) -> np.ndarray:
    """Row of integers, truth values and reals, for `unpack` in a compiled function."""
    return np.frombuffer(b"".join([_bytes(part) for part in parts]), np.int64)


def _bytes(part: np.ndarray | np.float64 | int) -> bytes:
    """Eight bytes a number. Joining bytes takes a third of the time of joining arrays."""
    if isinstance(part, int):
        return part.to_bytes(8, sys.byteorder, signed=True)
    return part.tobytes() if part.dtype.itemsize == 8 else part.astype(np.int64).tobytes()


def pack_lists(whole: Sequence[int], reals: Sequence[float]) -> np.ndarray:
    """Row of whole numbers and then reals that come as Python's own: arrays on the way would take longer than the rest."""
    return np.frombuffer(struct.pack(f"={len(whole)}q{len(reals)}d", *whole, *reals), np.int64)


def unpack(row: Array, *parts: tuple[type, tuple[int, ...]]) -> list[Array]:
    """Inverse of `pack`, inside a compiled function: each part by its type (int, bool or float) and shape."""
    out, at = [], 0
    for kind, shape in parts:
        size = int(np.prod(shape, dtype=int))
        piece = row[at : at + size].reshape(shape)
        at += size
        out.append(lax.bitcast_convert_type(piece, jnp.float64) if kind is float else piece.astype(kind))
    return out


def packed(*parts: Array) -> Array:
    """The same as `pack`, inside a compiled function: what it hands out."""
    return jnp.concatenate([_traced_bits(jnp.atleast_1d(part)) for part in parts])


def _traced_bits(part: Array) -> Array:
    real = jnp.issubdtype(part.dtype, jnp.floating)
    return (lax.bitcast_convert_type(part, jnp.int64) if real else part.astype(jnp.int64)).ravel()


def unpacked(row: Array, *parts: tuple[type, int]) -> list[list[Any]]:
    """Inverse of `packed`, as Python's own numbers: each part by its type and how many there are of it."""
    letters = "".join(f"{size}{'d' if kind is float else 'q'}" for kind, size in parts)
    numbers, out, at = struct.unpack(f"={letters}", row), [], 0
    for kind, size in parts:
        piece = numbers[at : at + size]
        at += size
        out.append([x != 0 for x in piece] if kind is bool else list(piece))
    return out
