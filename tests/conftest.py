"""Its presence puts this folder on the import path, so that tests can say `from helpers import ...`.

Two thirds of the suite's time would be XLA compiling programs that run for a moment. Its older emitters, at the lowest level that
still vectorises, take a third of the time (``XLA_FLAGS= make test`` tests what a user runs). And what one test compiled, the
next one finds: kept beside the sources, keyed by program and version, so that both workers share it and a second run is faster.
Of the rest, a few per cent would be notes on where in the sources each operation came from, which nobody reads here, and
looking for garbage, of which there is next to none among a million small objects that stay.
"""

import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault(
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
)  # before anyone imports Ray: clusters listen on loopback only
os.environ.setdefault("NPROC", "1")  # threads of XLA's: there is a worker for every core already
gc.set_threshold(100_000, 20, 50)

# A shell that starts the tests in the background has their Ctrl-C ignored, and processes inherit that: a test that sends one to a
# process it started would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "owners/test_ray",
    "unit/test_demo_consortium",
    "tests/chaos",
    "tests/docs",
    "test_truncated",
    "test_planner",
    "test_audit",
)


def pytest_collection_modifyitems(items):
    """Tests that take longest come first: one that is begun when everything else is done keeps a worker idle for its length."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))
