"""``sfumato doctor``: whether this installation is fit to keep a promise."""

import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import typer

from sfumato.cli import endings
from sfumato.cli.study import AsJson
from sfumato.tools.version import versions

PACKAGES = ("sfumato", "jax", "numpyro", "opendp", "numpy", "scipy", "arviz", "pandas", "pyarrow", "typer", "rich")
SCALE = 1000.0
DRAWS = 4000
WIDE = 7.0
"""Standard errors by which a mean or sd may be off: an honest source is refused once in 10^11 times."""


class Check(NamedTuple):
    """One examination: what was looked at, whether it is fine, what was seen."""

    name: str
    ok: bool
    seen: str


def doctor(as_json: AsJson = False) -> None:
    """Examine this installation: versions, both noise sources, the ledger, the arithmetic of the penalty.

    Exit code 1 if anything is wrong.
    """
    found = [_examine(name, check) for name, check in CHECKS.items()]
    versions = _versions()
    fine = all(check.ok for check in found)
    if as_json:
        endings.write_json({"ok": fine, "checks": [check._asdict() for check in found], "versions": versions})
    else:
        _show(found, versions)
    raise typer.Exit(endings.FINE if fine else endings.UNEXPECTED)


def _examine(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *check())
    except Exception as error:  # a doctor reports every illness, also the unknown ones
        return Check(name, False, f"raised {type(error).__name__}")


def _versions() -> dict[str, str]:
    return {"system": f"{platform.system()} {platform.machine()}"} | versions(PACKAGES)


def _noise(make: Callable[[float], Any]) -> tuple[bool, str]:
    """Draw two blocks: mean and spread as they should be, and never the same block twice."""
    import numpy as np

    source = make(SCALE)
    first, second = source.draw(DRAWS), source.draw(DRAWS)
    both = np.concatenate([first, second]).astype(float)
    mean, sd = float(both.mean()), float(both.std())
    error = SCALE / len(both) ** 0.5
    ok = abs(mean) < WIDE * error and abs(sd - SCALE) < WIDE * error and not np.array_equal(first, second)
    return ok, f"{len(both):,} draws of scale {SCALE:g}: mean {mean:.1f}, sd {sd:.1f}; two blocks differ"


def _opendp_noise() -> tuple[bool, str]:
    from sfumato.vault.noise import OpenDPSource

    return _noise(OpenDPSource)


def _own_noise() -> tuple[bool, str]:
    from sfumato.vault.gaussian import ExactSource

    return _noise(ExactSource)


def _ledger() -> tuple[bool, str]:
    """Reserve, settle, overdraw and verify, in a file of its own."""
    from sfumato.errors import BudgetSpent
    from sfumato.privacy.budget import cap_quanta
    from sfumato.vault.ledger import Ledger

    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger(Path(folder) / "test.ledger", epsilon=1.0, delta=1e-6) as ledger,
    ):
        account = ledger.account("doctor", cap_quanta(0.1))
        account.reserve(100).settle(40)
        try:
            account.reserve(ledger.cap)
        except BudgetSpent:
            ok = ledger.spent == 40 and ledger.verify().ok
            return ok, "written, settled, verified; an overdraft was refused"
    return False, "an overdraft was granted"


def _penalty() -> tuple[bool, str]:
    """Detailed balance of the real accept step: alpha(lam) = e^lam alpha(-lam), the noise integrated out."""
    import jax
    import numpy as np

    from sfumato.kernel.penalty import log_alpha

    z = np.linspace(-9, 9, 3001)
    weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()

    def alpha(lam: float, sigma: float) -> float:
        return float(np.sum(weight * np.exp(np.asarray(log_alpha(lam + sigma * z, 0.0, 0.0, sigma)))))

    with jax.enable_x64(True):
        cases = [(-2.0, 0.5), (-0.3, 1.0), (0.7, 1.8), (2.0, 2.5)]
        worst = max(abs(alpha(lam, s) / (np.exp(lam) * alpha(-lam, s)) - 1) for lam, s in cases)
    return worst < 1e-3, f"detailed balance holds to {worst:.1e}"


def _double() -> tuple[bool, str]:
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        ok = jnp.asarray(1.0).dtype == jnp.float64 and int(jnp.asarray(2**62) + 1) == 2**62 + 1
    return ok, f"64-bit floats and integers on {jax.devices()[0].platform}"


def _accounting() -> tuple[bool, str]:
    """Mu to epsilon and back, against a value computed elsewhere."""
    from sfumato.privacy import gdp

    delta = float(gdp.delta(1.0, 1.0))
    ok = abs(delta - 0.12693673750664397) < 1e-9 and abs(float(gdp.mu(1.0, delta)) - 1.0) < 1e-9
    return ok, f"mu = 1 at epsilon = 1 gives delta = {delta:.6f}"


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "noise, OpenDP": _opendp_noise,
    "noise, vectorised": _own_noise,
    "ledger": _ledger,
    "penalty": _penalty,
    "accounting": _accounting,
    "precision": _double,
}


def _show(found: list[Check], versions: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from sfumato.cli import show
    from sfumato.cli.output import console

    show.heading("Self-test")
    table = Table.grid(padding=(0, 2))
    for check in found:
        mark = Text("fine", style="green") if check.ok else Text("WRONG", style="bold red")
        table.add_row(Text(f"  {check.name}"), mark, Text(check.seen))
    console().print(table)
    show.heading("Versions")
    show.paragraph(", ".join(f"{name} {version}" for name, version in versions.items()))
    if not all(check.ok for check in found):
        show.paragraph("\nDo not release anything with this installation before what is wrong is put right.")
