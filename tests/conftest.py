"""Its presence puts this folder on the import path, so that tests can say `from helpers import ...`.

Two thirds of the suite's time would be XLA compiling programs that run for a moment. Its older emitters, at the lowest level that
still vectorises, take a third of the time (``XLA_FLAGS= make test`` tests what a user runs). And what one test compiled, the
next one finds: kept beside the sources, keyed by program and version, so that both workers share it and a second run is faster.
"""

import os
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
