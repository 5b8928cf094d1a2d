"""A study in its own words: how it and its parameters are called, and how they are shown. Nothing is computed with it."""

from typing import Literal

import msgspec

Scale = Literal["", "percent", "exp", "expit"]
"""What is done to a parameter before it is shown: nothing, times 100, e to the power of it, or the share whose log odds it is."""


class Label(msgspec.Struct, frozen=True):
    """How a parameter is called and shown."""

    label: str = ""
    unit: str = ""
    scale: Scale = ""


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """A study in its own words.

    Attributes
    ----------
    title, question
        What the study is called, and what it asks.
    answer
        The parameter that answers the question; the first by default.
    parameters
        How parameters are called and shown; the name of a site stands for all of its entries.
    source
        Where the records come from.
    columns
        Which raw columns make up each name.
    """

    title: str = ""
    question: str = ""
    answer: str = ""
    parameters: dict[str, Label] = {}
    source: str = ""
    columns: dict[str, str] = {}

    def label(self, name: str) -> Label:
        """The label of a parameter, or of the site that it is an entry of."""
        found = self.parameters.get(name)
        if found is not None:
            return found
        site = name.split("[", maxsplit=1)[0]
        whole = self.parameters.get(site, Label())
        return msgspec.structs.replace(whole, label=f"{whole.label} {name[len(site) :]}".strip() if whole.label else "")

    def called(self, name: str) -> str:
        """What a parameter is called."""
        return self.label(name).label or name
