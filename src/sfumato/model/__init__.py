"""What is inferred: `Model`, and the ways to get one."""

from sfumato.model.base import Model, Observation, Site
from sfumato.model.from_numpyro import from_numpyro

__all__ = ["Model", "Observation", "Site", "from_numpyro"]
