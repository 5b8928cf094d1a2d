"""What is inferred: `Model`, and the ways to get one."""

from sfumato.model.base import Model, Observation, Site
from sfumato.model.from_numpyro import from_numpyro
from sfumato.model.from_pymc import from_pymc

__all__ = ["Model", "Observation", "Site", "from_numpyro", "from_pymc"]
