"""Arrays go in and out of a compiled call as one row, and come back to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.vault.packing import pack, pack_lists, packed, unpack, unpacked

REALS = np.array([[0.1, -0.0, 5e-324], [np.pi, -1e308, 2.0**-36]])
WHOLE = np.array([-(2**62), 2**53 + 1])
FLAGS = np.array([True, False])


def test_what_is_packed_arrives_to_the_last_bit():
    with jax.enable_x64(True):
        read = jax.jit(lambda row: unpack(row, (float, (2, 3)), (int, (2,)), (bool, (2,)), (int, ()), (float, ())))
        reals, whole, flags, one, last = read(pack(REALS, WHOLE, FLAGS, 2**62 - 1, np.float64(0.3)))
        assert np.asarray(reals).tobytes() == REALS.tobytes()
        assert np.asarray(whole).tolist() == WHOLE.tolist()
        assert np.asarray(flags).tolist() == FLAGS.tolist()
        assert (int(one), float(last)) == (2**62 - 1, 0.3)


def test_what_is_handed_out_arrives_to_the_last_bit():
    with jax.enable_x64(True):
        row = jax.jit(packed)(7, REALS[0], WHOLE, FLAGS)
        assert row.dtype == jnp.int64
        (one,), reals, whole, flags = unpacked(row, (int, 1), (float, 3), (int, 2), (bool, 2))
    assert one == 7
    assert np.array(reals).tobytes() == REALS[0].tobytes()
    assert whole == WHOLE.tolist()
    assert flags == [True, False] and all(type(flag) is bool for flag in flags)


def test_lists_are_packed_as_arrays_are():
    there = pack_lists([2**62 - 1, True, False], REALS.ravel().tolist())
    assert there.tobytes() == pack(2**62 - 1, FLAGS, REALS).tobytes()


def test_rows_of_a_larger_array_are_packed_as_they_stand():
    assert pack(REALS[:, 1]).view(np.float64).tolist() == REALS[:, 1].tolist()
