"""The version, which files, nodes and reports name, and those of the packages that it computes with."""

from collections.abc import Iterable

__version__ = "0.1.0"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of packages, and of Python; "missing" where there is none."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
