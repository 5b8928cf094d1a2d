"""How options and commands look in the help: flags take no value, and say so."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def flag(*names: str, help: str, **options: Any) -> Any:
    """A flag: an option without a value."""
    return typer.Option(*names, help=help, metavar="", **options)


class Command(TyperCommand):
    """A command whose own --help is a flag like any other."""

    def get_help_option(self, ctx: Any) -> Any:
        """The --help flag."""
        return _as_flag(super().get_help_option(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """The --help flag."""
        return _as_flag(super().get_help_option(ctx))


def _as_flag(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option
