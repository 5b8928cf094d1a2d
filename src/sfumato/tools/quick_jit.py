"""Programs that run for a moment are compiled quickly, not well."""

from collections.abc import Callable
from typing import Any

import jax

QUICK_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Without LLVM's optimisations, by XLA's older emitters: a plan compiles in half the time, the same numbers but for rounding."""


def quick_jit(function: Callable[..., Any]) -> Any:
    """`jax.jit` for what a plan evaluates a few times: compiling it well would take longer than it will ever run.

    Never for the chains' own loops, nor for anything that sees records: those run for long, and their sums must agree to the last
    bit wherever they are taken.
    """
    return jax.jit(function, compiler_options=QUICK_OPTIONS)
