"""OpenDP's source, the choice of a source, and the pool: every value once, to one consumer, in one process."""

import ast
import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys
import threading
import time
from textwrap import dedent

import numpy as np
import pytest
from noise_laws import LARGE_SCALE_LAWS, exact_law, moments
from scipy import stats

from helpers import FALSE_ALARM
from sfumato.errors import InvalidInput, NoiseError
from sfumato.vault import gaussian, noise
from sfumato.vault.gaussian import ExactSource
from sfumato.vault.noise import RECORDS_PER_DRAW, NoisePool, OpenDPSource, source_for

LARGE_SCALE = 2.0**30 * 1.37
PATIENCE = 10.0  # seconds a thread gets for what takes milliseconds


class Counter:
    """A source whose values tell where they have been: 1, 2, 3, ..."""

    scale = 2.0**30

    def __init__(self) -> None:
        self.last = 0

    def draw(self, size: int) -> np.ndarray:
        self.last += size
        return np.arange(self.last - size + 1, self.last + 1, dtype=np.int64)


class Reply:
    """A source that returns, or raises, what the test prepared."""

    scale = 2.0**30

    def __init__(self, *replies) -> None:
        self.replies = list(replies)

    def draw(self, size: int) -> np.ndarray:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, BaseException):
            raise reply
        return reply


def eventually(condition) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


# ---- sources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.7, 1.5, 3.0, 10.5])
def test_opendp_has_the_exact_law_at_small_scales(scale):
    assert exact_law(OpenDPSource(scale).draw(30_000), scale) > FALSE_ALARM


def test_opendp_looks_normal_at_a_large_scale():
    draws = OpenDPSource(LARGE_SCALE).draw(2**16)
    assert all(law(draws, LARGE_SCALE) > FALSE_ALARM / len(LARGE_SCALE_LAWS) for law in LARGE_SCALE_LAWS)


def two_samples(first: np.ndarray, second: np.ndarray) -> float:
    return float(stats.ks_2samp(first, second, method="asymp").pvalue)


def test_both_sources_draw_the_same_law():
    reference = OpenDPSource(LARGE_SCALE).draw(2**16)
    assert two_samples(ExactSource(LARGE_SCALE).draw(2**19), reference) > FALSE_ALARM
    assert two_samples(ExactSource(1.15 * LARGE_SCALE).draw(2**19), reference) < FALSE_ALARM  # the saboteur


def test_draws_have_shape_and_type():
    for size in (0, 1, 5):
        draws = OpenDPSource(LARGE_SCALE).draw(size)
        assert draws.shape == (size,)
        assert draws.dtype == np.int64


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**51])
def test_opendp_is_not_asked_for_a_scale_without_noise(scale):
    with pytest.raises(InvalidInput, match="scale of the noise"):
        OpenDPSource(scale)


@pytest.mark.parametrize(
    ("n", "coordinates", "kind"),
    [
        (RECORDS_PER_DRAW, 1, OpenDPSource),
        (RECORDS_PER_DRAW - 1, 1, ExactSource),
        (10 * RECORDS_PER_DRAW, 10, OpenDPSource),
        (10 * RECORDS_PER_DRAW - 1, 10, ExactSource),
    ],
)
def test_the_source_follows_from_public_numbers(n, coordinates, kind):
    source = source_for(LARGE_SCALE, n, coordinates)
    assert isinstance(source, kind)
    assert source.scale == LARGE_SCALE


def test_a_source_needs_records_and_coordinates():
    for n, coordinates in ((0, 1), (10, 0)):
        with pytest.raises(InvalidInput, match="at least 1"):
            source_for(LARGE_SCALE, n, coordinates)


# ---- the pool hands every value out once ---------------------------------------------------------------------------


def test_values_come_once_and_in_order_across_blocks():
    with NoisePool(Counter(), block=10, depth=2) as pool:
        taken = np.concatenate([pool.take(k) for k in (1, 0, 3, 10, 25, 7)])
    assert taken.tolist() == list(range(1, 47))


def test_numbers_are_the_values_that_would_be_taken():
    with NoisePool(Counter(), block=10, depth=2) as pool:
        handed = [value for k in (1, 0, 3, 300, 7) for value in pool.numbers(k)]
        assert handed == list(range(1, 312)) and all(type(value) is int for value in handed)
        assert not set(handed) & set(pool.take(50).tolist())


@pytest.mark.parametrize("way", [lambda pool, k: pool.take(k).tolist(), NoisePool.numbers], ids=["take", "numbers"])
def test_threads_never_share_a_value(way):
    with NoisePool(Counter(), block=97, depth=3) as pool:
        shares: list[list[int]] = [[] for _ in range(8)]

        def consume(share: list[int]) -> None:
            for k in (1, 2, 3, 150) * 25:
                share.extend(way(pool, k))

        threads = [threading.Thread(target=consume, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        at_hand = list(pool._shelf.hand)
    taken = sorted(value for share in shares for value in share)
    assert sorted(taken + at_hand) == list(range(1, len(taken) + len(at_hand) + 1))
    assert len(taken) == 8 * 25 * 156


def test_a_pool_keeps_the_law_of_its_source():
    with NoisePool(ExactSource(LARGE_SCALE)) as pool:
        assert pool.scale == LARGE_SCALE
        draws = np.concatenate([pool.take(k) for k in (1, 5000, 100_000, 30_000)])
    assert moments(draws, LARGE_SCALE) > FALSE_ALARM


def test_the_pool_draws_ahead_and_no_further_than_its_depth():
    source = Counter()
    with NoisePool(source, block=10, depth=3) as pool:
        assert eventually(lambda: source.last == 40)  # three on the shelf, one in the thread's hands
        time.sleep(0.05)
        assert source.last == 40
        pool.take(10)
        assert eventually(lambda: source.last == 50)


def test_the_thread_sleeps_while_there_is_enough(monkeypatch):
    """Waking it for every value would cost more than the value: it is told when a block is empty, or when more are wanted."""
    with NoisePool(Counter(), block=100, depth=2) as pool:
        pool.take(1)
        while len(pool._shelf.blocks) < 2:  # until the thread has nothing more to do
            time.sleep(0.001)
        told = []
        monkeypatch.setattr(pool._shelf.changed, "notify_all", lambda: told.append(1))
        for _ in range(98):
            pool.take(1)
        assert not told
        pool.take(1)  # the last of its block
        assert len(told) == 1
        monkeypatch.undo()
        # More than the depth: it grows, and the thread hears of it.
        assert pool.take(250).tolist() == list(range(101, 351))


def test_taken_values_are_zeroed_inside_and_the_answer_is_its_own():
    with NoisePool(Counter(), block=100, depth=1) as pool:
        taken = pool.take(40)
        head = pool._shelf.blocks[0]
        assert not head[:40].any()
        assert head[40:].all()
        head[:] = -1
        assert taken.tolist() == list(range(1, 41))


def test_a_source_that_reuses_its_buffer_is_not_zeroed_under_its_feet():
    buffer = np.arange(1, 101, dtype=np.int64)
    with NoisePool(Reply(buffer), block=100, depth=1) as pool:
        pool.take(100)
    assert buffer.all()


def test_waiting_is_measured():
    class Slow(Counter):
        def draw(self, size: int) -> np.ndarray:
            time.sleep(0.05)
            return super().draw(size)

    with NoisePool(Slow(), block=5, depth=1) as pool:
        pool.take(10)
        assert 0.04 < pool.waited < PATIENCE


def test_a_pool_refuses_a_negative_number_and_an_empty_shape():
    with NoisePool(Counter()) as pool, pytest.raises(InvalidInput, match="negative"):
        pool.take(-1)
    for block, depth in ((0, 1), (1, 0)):
        with pytest.raises(InvalidInput, match="at least one"):
            NoisePool(Counter(), block=block, depth=depth)


def test_the_repr_is_closed():
    with NoisePool(Counter()) as pool:
        assert repr(pool) == str(pool) == "<NoisePool closed>"


# ---- failures are loud ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        RuntimeError("no entropy"),
        SystemExit(3),
        np.zeros(100, dtype=np.int64),
        np.full(100, 7, dtype=np.int64),
        np.arange(99, dtype=np.int64),
        np.arange(100, dtype=np.float64),
        np.arange(100, dtype=np.int64).reshape(10, 10),
        list(range(100)),
        None,
    ],
    ids=["raises", "exits", "zeros", "constant", "short", "floats", "matrix", "list", "nothing"],
)
def test_a_broken_source_surfaces_in_take(reply):
    with NoisePool(Reply(reply), block=100) as pool:
        for _ in range(2):  # and stays broken
            with pytest.raises(NoiseError, match="source, and this one failed") as caught:
                pool.take(1)
        assert caught.value.__cause__ is not None


def test_a_source_that_fails_later_never_gives_a_short_answer():
    good = np.arange(1, 101, dtype=np.int64)
    with NoisePool(Reply(good, RuntimeError("gone")), block=100) as pool, pytest.raises(NoiseError):
        pool.take(150)


def test_the_message_names_no_value_of_the_source():
    with NoisePool(Reply(RuntimeError("secret 12345"))) as pool, pytest.raises(NoiseError) as caught:
        pool.take(1)
    assert "12345" not in str(caught.value)


def test_a_closed_pool_gives_nothing_and_keeps_nothing():
    pool = NoisePool(Counter(), block=10)
    pool.take(3), pool.numbers(3)
    blocks, hand = list(pool._shelf.blocks), pool._shelf.hand
    assert hand
    pool.close()
    pool.close()
    assert not hand
    assert not pool._thread.is_alive()
    assert not any(block.any() for block in blocks)
    for ask in (pool.take, pool.numbers):
        with pytest.raises(NoiseError, match="closed"):
            ask(1)


def test_closing_wakes_a_waiting_consumer():
    gate = threading.Event()

    class Stuck(Counter):
        def draw(self, size: int) -> np.ndarray:
            gate.wait(PATIENCE)
            return super().draw(size)

    pool = NoisePool(Stuck(), block=10)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            pool.take(1)
        except NoiseError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.05)
    pool._shelf.close()
    consumer.join(PATIENCE)
    gate.set()
    assert len(caught) == 1
    pool.close()
    assert not pool._thread.is_alive()


def test_a_forgotten_pool_ends_its_thread():
    pool = NoisePool(Counter(), block=10)
    pool.take(1)
    thread = pool._thread
    del pool
    gc.collect()
    assert eventually(lambda: not thread.is_alive())


def strike(line: int):
    """Return a tracer that raises KeyboardInterrupt once, at the given line of the pool's code that moves values."""
    codes = {noise._Shelf._move.__code__, noise._Shelf.pop_into.__code__}
    struck = []

    def local(frame, event, _):
        if event == "line" and frame.f_lineno == line and not struck:
            struck.append(line)
            raise KeyboardInterrupt
        return local

    return lambda frame, event, _: local if frame.f_code in codes else None


def lines_that_move_values() -> list[int]:
    codes = (noise._Shelf._move.__code__, noise._Shelf.pop_into.__code__)
    return sorted({line for code in codes for *_, line in code.co_lines() if line and line > code.co_firstlineno})


@pytest.mark.parametrize("line", lines_that_move_values())
@pytest.mark.parametrize("k", [4, 10, 13])
def test_an_interrupt_loses_values_and_never_repeats_or_zeroes_them(line, k):
    with NoisePool(Counter(), block=10, depth=2) as pool:
        taken = pool.take(3).tolist()
        tracer = sys.gettrace()
        sys.settrace(strike(line))
        try:
            taken += pool.take(k).tolist()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        taken += pool.take(30).tolist()
    assert 0 not in taken
    assert len(set(taken)) == len(taken)


# ---- no copies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_pool_cannot_be_duplicated(duplicate):
    with NoisePool(Counter()) as pool, pytest.raises(NoiseError, match="never"):
        duplicate(pool)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_protocol_gets_through(protocol):
    with NoisePool(Counter()) as pool, pytest.raises(NoiseError):
        pickle.dumps({"pool": pool}, protocol=protocol)


FORK = """
    import os, signal, sys, threading, types
    import sfumato
    package = types.ModuleType("sfumato.vault")  # stands in for the package, whose import would start JAX's threads
    package.__path__ = [os.path.join(sfumato.__path__[0], "vault")]
    sys.modules["sfumato.vault"] = package
    from sfumato.errors import NoiseError
    from sfumato.vault import noise
    from sfumato.vault.gaussian import ExactSource

    def child(pool, blocks):
        for ask in (pool.take, pool.numbers):
            try:
                ask(1)
            except NoiseError as error:
                assert "build a new pool" in str(error), error
            else:
                raise AssertionError("the child got noise")
        if {hooks}:
            assert not pool._shelf.blocks and not pool._shelf.hand, "the child still holds values"
            assert not any(block.any() for block in blocks), "the blocks were not wiped"
        pool.close()
        with noise.NoisePool(ExactSource(2.0**50)) as fresh:
            return fresh.take(64).tolist()

    pool = noise.NoisePool(ExactSource(2.0**50), block=64, depth=2)
    if not {hooks}:
        noise._SHELVES.clear()  # what a fork by native code looks like
    before = pool.take(10).tolist() + pool.numbers(10)
    blocks = list(pool._shelf.blocks)
    held, release = threading.Event(), threading.Event()

    def hold(lock):
        with lock:
            held.set()
            release.wait()

    if {locked}:  # by a thread that the child will not have
        threading.Thread(target=hold, args=(pool._shelf.changed,)).start()
        held.wait()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that waits for a lost lock must not outlive the test
        os.write(write, repr(child(pool, blocks)).encode())
        sys.exit(0)  # with the exit handlers: they must not wait for the parent's locks
    release.set()
    os.close(write)
    theirs = eval(b"".join(iter(lambda: os.read(read, 65536), b"")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    after = pool.take(200).tolist() + pool.numbers(20)
    assert len(theirs) == 64
    assert len(set(before + after + theirs)) == 20 + 220 + 64
    print("disjoint")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("hooks", [True, False], ids=["hooks", "no-hooks"])
@pytest.mark.parametrize("locked", [True, False], ids=["locked", "free"])
def test_a_forked_child_inherits_nothing(hooks, locked):
    script = dedent(FORK).format(hooks=hooks, locked=locked)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "disjoint\n", done.stderr
    assert done.returncode == 0


# ---- no seed, no second stream -------------------------------------------------------------------------------------

FORBIDDEN_PARAMETERS = {"seed", "key", "rng", "random_state"}
MODULES = (noise, gaussian)


def parameters(module) -> set[str]:
    """Name every parameter of every function of a module, nested ones and lambdas included."""
    tree = ast.parse(inspect.getsource(module))
    return {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def imports(module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(str(node.module))
        elif isinstance(node, ast.Attribute):
            names.add(f"{ast.unparse(node.value)}.{node.attr}")
    return names


@pytest.mark.parametrize("module", MODULES)
def test_nothing_takes_a_seed(module):
    assert not parameters(module) & FORBIDDEN_PARAMETERS
    for _, member in inspect.getmembers(module, callable):
        if getattr(member, "__module__", "") == module.__name__:
            assert not set(inspect.signature(member).parameters) & FORBIDDEN_PARAMETERS


@pytest.mark.parametrize("module", MODULES)
def test_no_other_stream_of_randomness_is_imported(module):
    found = imports(module)
    assert "numpy" in found  # the walk sees imports
    assert not {n for n in found if n == "random" or n.startswith(("random.", "numpy.random", "np.random"))}


def test_the_public_constructors_take_a_scale_and_nothing_else():
    for source in (OpenDPSource, ExactSource):
        assert list(inspect.signature(source).parameters) == ["scale"]
