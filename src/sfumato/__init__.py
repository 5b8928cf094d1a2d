"""Exact Bayesian inference on records nobody is allowed to see.

Every answer that leaves the data carries calibrated Gaussian noise, the penalty algorithm absorbs that noise, and the draws
still come from the exact posterior, under a stated (epsilon, delta)-differential privacy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sfumato.tools.version import __version__

if TYPE_CHECKING:
    from sfumato import errors, families, kernel, paper
    from sfumato.analysis.estimate import Estimate
    from sfumato.analysis.result import Run, StopReason, load
    from sfumato.auditor import Audit, audit
    from sfumato.bounds import Clip, Lipschitz, Range
    from sfumato.domain import Ball, Binary, Box, Categories, Ellipsoid, Integers, Interval
    from sfumato.model import Model, from_pymc
    from sfumato.model.robust import robust
    from sfumato.owners.bundle import Bundle, release
    from sfumato.owners.owner import Owner
    from sfumato.owners.remote import connect
    from sfumato.planner import Plan
    from sfumato.privacy import gdp
    from sfumato.run.estimating import estimate
    from sfumato.run.sampling import plan, resume, sample
    from sfumato.study.certify import certify
    from sfumato.vault.ledger import Ledger
    from sfumato.vault.ray_table import RayTable
    from sfumato.vault.sealed.consortium import Consortium
    from sfumato.vault.sealed.identity import Identity


# Names are imported when they are first used, so that `import sfumato` and `sfumato --help` do not wait for JAX.
_HOME = {
    "Audit": "auditor", "audit": "auditor", "Bundle": "owners.bundle", "release": "owners.bundle",
    "connect": "owners.remote",
    "Ball": "domain", "Binary": "domain", "Box": "domain", "Categories": "domain",
    "Ellipsoid": "domain", "Integers": "domain", "Interval": "domain",
    "Model": "model", "from_pymc": "model", "Owner": "owners.owner", "Plan": "planner", "RayTable": "vault.ray_table",
    "Estimate": "analysis.estimate", "estimate": "run.estimating",
    "Run": "analysis.result", "StopReason": "analysis.result", "load": "analysis.result",
    "plan": "run.sampling", "resume": "run.sampling", "sample": "run.sampling",
    "Clip": "bounds", "Lipschitz": "bounds", "Range": "bounds", "certify": "study.certify",
    "Ledger": "vault.ledger", "Consortium": "vault.sealed.consortium", "Identity": "vault.sealed.identity",
    "robust": "model.robust",
}  # fmt: skip
_MODULES = {"errors": "errors", "families": "families", "gdp": "privacy.gdp", "kernel": "kernel", "paper": "paper"}

__all__ = [
    "Audit",
    "Ball",
    "Binary",
    "Box",
    "Bundle",
    "Categories",
    "Clip",
    "Consortium",
    "Ellipsoid",
    "Estimate",
    "Identity",
    "Integers",
    "Interval",
    "Ledger",
    "Lipschitz",
    "Model",
    "Owner",
    "Plan",
    "Range",
    "RayTable",
    "Run",
    "StopReason",
    "__version__",
    "audit",
    "certify",
    "connect",
    "errors",
    "estimate",
    "families",
    "from_pymc",
    "gdp",
    "kernel",
    "load",
    "paper",
    "plan",
    "release",
    "resume",
    "robust",
    "sample",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"sfumato.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"sfumato.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
