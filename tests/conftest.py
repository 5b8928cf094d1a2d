"""Its presence puts this folder on the import path, so that tests can say `from helpers import ...`.

Two thirds of the suite's time is XLA compiling. What one test compiled, the next one finds: kept beside the sources, keyed by
program and version, so that both workers share it and a second run is several times faster than the first.
"""

import os
from pathlib import Path

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
