"""What holds records, exact sums or unused noise is never shown, written down or copied."""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T", bound=type[Any])


def closed(holding: str) -> Callable[[T], T]:
    """Class decorator: a repr without content, and TypeError for pickle, `copy.copy` and `copy.deepcopy`.

    Parameters
    ----------
    holding
        What it holds, for the message.
    """

    def close(kind: T) -> T:
        name = kind.__name__.lstrip("_")

        def show(self: Any) -> str:
            return f"<{name} closed>"

        def refuse(self: Any) -> NoReturn:
            raise TypeError(f"{name} is never serialised or copied: it holds {holding}.")

        for method, body in (("__repr__", show), ("__reduce__", refuse)):
            setattr(kind, method, body)
        return kind

    return close
