"""Its presence puts this folder on the import path, so that tests can say `from helpers import ...`.

Two thirds of the suite's time would be XLA compiling programs that run for a moment. Its older emitters, at the lowest level that
still vectorises, take a third of the time (``XLA_FLAGS= make test`` tests what a user runs), and a fifth less if no program is
cut into parts for several threads. And what one test compiled, the next one finds: kept beside the sources, keyed by program and
version, so that both workers share it and a second run is faster. Of the rest, a few per cent would be notes on where in the
sources each operation came from, which nobody reads here, and looking for garbage, of which there is next to none among a million
small objects that stay.

JAX keeps every compiled program and every trace for as long as its process lives, and a worker that kept all of them would grow
to several GB. Between two files of tests a worker that has grown drops them: the next file needs few of them, and finds those in
the cache on disk.
"""

import ctypes
import gc
import os
import signal
import sys
from functools import wraps
from pathlib import Path

import pytest

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1",
)
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

QUICK = (
    "privacy/test_wall",
    "privacy/test_closed",
    "privacy/test_lattice",
    "privacy/test_gdp",
    "privacy/test_filter",
    "privacy/test_composition",
    "statistical/test_reversibility",
    "unit/test_exports",
    "unit/test_domain",
    "unit/test_ledger",
    "unit/test_journal",
    "unit/test_packing",
    "unit/test_studyfile",
    "unit/node/test_config",
    "unit/node/test_tokens",
    "test_planner.py::test_zero_steps",
    "test_planner.py::test_examples",
    "test_planner.py::test_of_two_limits",
    "test_planner.py::test_small_steps",
    "docs/test_docs.py::test_links",
    "docs/test_docs.py::test_every",
    "docs/test_docs.py::test_the_reference",
    "test_golden.py",
)
"""What `--quick` keeps: the rules that are not negotiable, the money, what survives, and a golden run of each road."""


def _forgetting(method):
    """What was compiled before something is put in another's place would go on without it."""

    @wraps(method)
    def changed(self, *arguments, **named):
        result = method(self, *arguments, **named)
        if (programs := sys.modules.get("sfumato.kernel.shared_programs")) is not None:
            programs.forget_programs()
        return result

    return changed


for _name in ("setattr", "undo"):
    setattr(pytest.MonkeyPatch, _name, _forgetting(getattr(pytest.MonkeyPatch, _name)))

GROWN = 1 << 30  # bytes; a worker begins with a third of that


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="only the tests a change needs most (`make quick`)")


def pytest_ignore_collect(collection_path, config):
    """Files of which nothing is quick are not even imported."""
    quick = [name.split("::")[0].removesuffix(".py") for name in QUICK]
    if config.getoption("--quick") and collection_path.name.startswith("test_"):
        return True if not any(name in str(collection_path) for name in quick) else None
    return None


def pytest_collection_modifyitems(config, items):
    """Tests that take longest come first: one that is begun when everything else is done keeps a worker idle for its length."""
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))
    if config.getoption("--quick"):
        left_out = [item for item in items if not any(name in item.nodeid for name in QUICK)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    if nextitem is not None and nextitem.path != item.path and sys.platform == "linux" and _resident() > GROWN:
        import jax

        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system
    return result


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
