r"""Bundles: k noisy copies of the sufficient statistic, released once, used anywhere.

Algorithm 3 of the paper needs the data only through :math:`\hat S^{(t)} \sim N(S_n, \xi I)`, one copy per iteration, and the
copies do not depend on theta. So an owner can release all of them ahead of time, as one file, and never be asked again:

>>> import numpy as np, sfumato as sf
>>> family = sf.families.Bernoulli()
>>> bundle = sf.release(family, {"y": np.arange(5000) % 5 == 0}, epsilon=1.0, delta=1e-6, copies=2000)
>>> bundle.copies, bundle.left
(2000, 2000)

A copy is used once, by one chain and one decision: the noise that accepted a move must not judge another one. `Copies` hands
them out and cannot hand one out twice.

References
----------
Yıldırım 2016, Algorithm 3 and Corollary 1.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from sfumato.domain import Domain
from sfumato.errors import BundleError, InvalidInput
from sfumato.families.base import Family
from sfumato.owners import bundle_file
from sfumato.owners.local import open_sealed_statistics, open_statistics
from sfumato.planner import MAX_RELEASES, budget_mu, lattice_slack
from sfumato.privacy.budget import QUANTA_PER_UNIT
from sfumato.privacy.joint import JointStatement, join, plain_fields
from sfumato.privacy.promise import epsilon_of
from sfumato.privacy.statement import SealedPromise, Statement
from sfumato.protocol.consortium import SealedRelease
from sfumato.study.target import make_study
from sfumato.tools.kept_programs import kept_programs
from sfumato.tools.notebook import card
from sfumato.tools.progress import Tick, ticker
from sfumato.vault.ledger import Ledger
from sfumato.vault.sealed.consortium import Consortium

if TYPE_CHECKING:
    from sfumato.analysis.noise_aware import NoiseAware

EXACT = "Draws that Algorithm 3 makes from these copies come from the exact posterior of the stated model."
EXACT_CLAMPED = EXACT.removesuffix(".") + " given the clamped records."


def family_fingerprint(family: Family) -> str:
    """Hash of what a bundle depends on: statistic and domain. The prior is the analyst's own and plays no part."""
    plain = replace(family, prior=None)
    return hashlib.sha256(plain.source().encode()).hexdigest()


class Copies:
    """Noisy copies, each handed out once.

    Parameters
    ----------
    load
        Gives all copies, shape (k, d); called when the first is needed.
    total
        k.
    used
        How many at the beginning were used elsewhere.
    """

    def __init__(self, load: Callable[[], np.ndarray], total: int, used: int = 0) -> None:
        if not 0 <= used <= total:
            raise InvalidInput(f"used must lie between 0 and the number of copies, {total}, got {used}.")
        self._load, self._total, self._used = load, total, used
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """How many have been handed out."""
        return self._used

    @property
    def left(self) -> int:
        """How many have not."""
        return self._total - self._used

    def take(self, count: int) -> np.ndarray:
        """Hand out the next `count` copies, shape (count, d). Nobody gets them again.

        Raises
        ------
        BundleError
            Fewer are left. None is handed out then.
        """
        with self._lock:
            if count > self.left:
                raise BundleError(
                    f"a copy is used once, and {self.left:,} of {self._total:,} are left where {count:,} are wanted; release "
                    "another bundle, or ask for fewer iterations."
                )
            first, self._used = self._used, self._used + count
        values = self._load()[first : first + count]
        values.flags.writeable = False
        return values

    def __reduce__(self) -> NoReturn:
        raise BundleError(
            "copies are never serialised or duplicated: they would be used twice. Open the bundle's file."
        )

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__reduce__()


class Bundle:
    """A released bundle. Made by `release` or `Bundle.open`; holds released values only.

    Attributes
    ----------
    id
        Random name; two bundles with the same one are the same release.
    n, copies, size
        Number of records behind the bundle, number of copies, and length of the statistic.
    xi
        Noise variance per coordinate of one copy.
    sensitivity
        How far one record can move the sum: what was charged is copies * sensitivity**2 / xi.
    privacy
        The statement.
    sealed
        Of a sealed bundle, whose numbers mean nothing by themselves: what was agreed on. Else None.
    """

    def __init__(
        self,
        header: Mapping[str, Any],
        *,
        values: np.ndarray | None = None,
        path: Path | None = None,
        family: Family | None = None,
        used: int = 0,
        privacy: Statement | JointStatement | None = None,
    ) -> None:
        self._header, self._values, self.path, self.family = dict(header), values, path, family
        self.id: str = header["id"]
        self.n: int = header["n"]
        self.copies: int = header["copies"]
        self.size: int = header["size"]
        self.xi: float = header["xi"]
        self.gamma: float = header["gamma"]
        self.sensitivity: float = header["sensitivity"]
        self.epsilon: float = header["epsilon"]
        self.delta: float = header["delta"]
        self.mu: float = header["mu"]
        self.outside: str = header["outside"]
        self.description: str = header["description"]
        self.fingerprint: str = header["family"]
        self.sealed: dict[str, Any] | None = header.get("sealed")
        self.privacy: Any = Statement(**header["statement"]) if privacy is None else privacy
        self.supply = Copies(self._all, self.copies, used)

    @classmethod
    def open(cls, path: str | Path, family: Family | None = None, *, used: int = 0) -> "Bundle":
        """Open a bundle's file and check all of it.

        Parameters
        ----------
        path
            A file that `release` wrote.
        family
            If given, the bundle must be of this family.
        used
            Copies at the beginning that an earlier run used (``run.pilot["copies"]`` says); they are not handed out again.

        Raises
        ------
        BundleError
            The file is truncated, edited, not a bundle, of another version, or of another family.
        """
        path = Path(path)
        header = bundle_file.read_header(path)
        for _ in bundle_file.read_rows(path):
            pass  # block by block: the checksum needs every row, memory does not
        try:
            opened = cls(header, path=path, family=family, used=used)
        except (KeyError, TypeError) as error:
            raise BundleError(f"{path.name} has an incomplete header ({error}); fetch it again.") from None
        if family is not None:
            opened.check_family(family)
        return opened

    @property
    def used(self) -> int:
        """Copies handed out so far."""
        return self.supply.used

    @property
    def left(self) -> int:
        """Copies that can still be handed out."""
        return self.supply.left

    def take(self, count: int) -> np.ndarray:
        """Hand out `count` copies for good: see `Copies.take`."""
        if self.sealed is not None:
            self._all()  # says why there are none
        return self.supply.take(count)

    def check_family(self, family: Family) -> None:
        """Refuse a family this bundle was not released for; the prior may be any."""
        if family_fingerprint(family) != self.fingerprint:
            raise BundleError(f"this bundle was released for {self.description}, not for {family!r}; use that family.")

    @property
    def header(self) -> dict[str, Any]:
        """Everything public about the release."""
        return dict(self._header)

    def masked_rows(self) -> np.ndarray:
        """Whole numbers of a sealed bundle, under masks: noise by themselves."""
        return self._read("<i8")

    def check_untouched(self) -> None:
        """Refuse copies of which some were handed out: they are opened from the first one on."""
        if self.used:
            raise BundleError("copies of sealed bundles are opened and used together; open the files anew.")

    def mean(self) -> np.ndarray:
        """Average of all copies: everything the bundle says about the sum, noise variance xi/copies. Uses nothing up."""
        return np.asarray(self._all().mean(axis=0))

    def noise_aware(self, family: Family | None = None, **options: Any) -> Any:
        """Posterior given the whole bundle, by normal approximation: see `noise_aware_of`."""
        return noise_aware_of(self._family(family), [self], **options)

    def save(self, path: str | Path) -> Path:
        """Write the bundle to a new file: header, every copy, checksum."""
        path = Path(path)
        with bundle_file.Writer(path, self._header) as writer:
            writer.write(self.masked_rows() if self.sealed else self._all())
        return path

    def _family(self, family: Family | None) -> Family:
        found = family if family is not None else self.family
        if found is None:
            raise InvalidInput(f"a bundle does not hold the family itself; pass family={self.description}.")
        self.check_family(found)
        return found

    def _all(self) -> np.ndarray:
        if self.sealed is not None:
            raise BundleError(
                "a sealed bundle is noise by itself: it opens together with those of all of "
                f"{', '.join(self.sealed['members'])}. Pass all of them."
            )
        return self._read("<f8")

    def _read(self, kind: str) -> np.ndarray:
        if self._values is None:
            if self.path is None:
                raise BundleError("this bundle has neither copies nor a file; open it again.")
            values = np.empty((self.copies, self.size), kind)
            at = 0
            for rows in bundle_file.read_rows(self.path):
                values[at : at + len(rows)] = rows
                at += len(rows)
            self._values = values
        return self._values.view()

    def __reduce__(self) -> NoReturn:
        raise BundleError("a bundle is not pickled: its copies would be used twice. Open its file where it is needed.")

    def _repr_html_(self) -> str:
        rows = [
            ("family", self.description), ("records", f"{self.n:,}"),
            ("copies", f"{self.copies:,}, {self.left:,} of them unused"),
            ("noise", f"variance xi = {self.xi:.4g} in each coordinate of a copy"),
            ("promise", f"epsilon = {self.epsilon:g}, delta = {self.delta:g}"),
        ]  # fmt: skip
        return card(f"Bundle {self.id}", rows)

    def __repr__(self) -> str:
        return (
            f"<Bundle {self.id}: {self.copies:,} copies ({self.left:,} unused) of {self.description}, n={self.n:,}, "
            f"xi={self.xi:.4g}; epsilon={self.epsilon:g}, delta={self.delta:g}>"
        )


def noise_aware_of(family: Family, bundles: Sequence[Bundle], **options: Any) -> "NoiseAware":
    """Noise-aware posterior given all copies of one bundle, or of the bundles of several owners.

    Parameters
    ----------
    family
        With the prior to use.
    bundles
        Of this family; each owner's records are others.
    **options
        draws, warmup, chains, seed: see `sample_posterior`.
    """
    from sfumato.analysis.noise_aware import from_copies, sample_posterior
    from sfumato.owners.sealed_bundle import gathered

    bundles = gathered(bundles)
    check_distinct(family, bundles)
    mean = np.sum([bundle.mean() for bundle in bundles], axis=0)
    variance = sum(bundle.xi / bundle.copies for bundle in bundles)
    measurement = from_copies(mean, variance, sum(bundle.n for bundle in bundles))
    clamped = any(bundle.outside == "clamp" for bundle in bundles)
    return sample_posterior(family, measurement, join([b.privacy for b in bundles]), clamped=clamped, **options)


def check_distinct(family: Family, bundles: Sequence[Bundle]) -> None:
    """Refuse bundles of another family, and one bundle given twice."""
    if not bundles:
        raise BundleError("no bundle was given; pass one, or a list of them.")
    if sealed := [bundle for bundle in bundles if bundle.sealed is not None]:
        sealed[0].mean()  # says what is missing
    for bundle in bundles:
        bundle.check_family(family)
    names = [bundle.id for bundle in bundles]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BundleError(f"bundle {twice} is given twice; its records would be counted twice. Pass each bundle once.")


@kept_programs()
def release(
    family: Family,
    data: Any,
    *,
    epsilon: float,
    delta: float,
    copies: int,
    path: str | Path | None = None,
    domain: Mapping[str, Domain] | None = None,
    ledger: Ledger | None = None,
    outside: str = "refuse",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    xi: float | None = None,
    consortium: Consortium | None = None,
    release_id: str | None = None,
    records: int | None = None,
    shares: Sequence[float] | None = None,
    progress: bool | Tick | None = None,
) -> Bundle:
    r"""Release k noisy copies of the sufficient statistic: all that Algorithm 3 ever asks of the data.

    .. math:: \hat S^{(t)} = S_n + N(0, \xi I), \quad t = 1 \dots k, \qquad \mu^2 = k\,\Delta^2/\xi

    Parameters
    ----------
    family
        What S is, and the domain its records live in.
    data
        Dict of arrays, DataFrame, or path of a Parquet or CSV file.
    epsilon, delta
        The guarantee for the whole bundle. No defaults: the owner must choose.
    copies
        k: one is consumed per iteration of any chain. More copies waste less of the budget (each is noisier) and cost
        compute.
    path
        File to write, row group by row group, in flat memory; without it the bundle stays in memory.
    domain
        May be left out: the family brings its own.
    ledger
        A budget shared by many releases from the same records.
    outside
        "refuse" or "clamp": what happens to records outside the domain.
    columns
        Which raw columns of a table make up each name.
    xi
        Noise variance per coordinate; by default what the budget affords. Corollary 1's is ``paper.corollary1(...).xi``. Of a
        sealed release that of all owners together, the same for all of them.
    consortium, release_id, records
        For a sealed release, which opens together with those of all other members: the owner's place in the consortium, an id
        that was agreed on beforehand and is used once, and the number of records of all owners together.
    shares
        Everybody's share of the noise variance, in the roster's order, the same at all owners; equal ones by default.
    progress
        None: a bar on a terminal; True or False; or a function (done, expected, text).

    Returns
    -------
    Bundle

    Raises
    ------
    BudgetSpent
        The ledger cannot pay for all of it. Nothing is drawn then.
    InvalidInput
        xi costs more than epsilon, delta afford; or the path exists.

    References
    ----------
    Yıldırım 2016, Algorithm 3. Privacy: the whole charge is reserved, durably, before the first copy is drawn.
    """
    if not isinstance(family, Family):
        raise InvalidInput(f"release needs an exponential family such as sf.families.Bernoulli(), got {family!r}.")
    mu = budget_mu(epsilon, delta)
    study = make_study(family, domain)
    _check_request(copies, family.size, xi)
    given: dict[str, Any] = {
        "mu": mu, "copies": copies, "xi": xi, "ledger": ledger, "outside": outside, "columns": columns
    }  # fmt: skip
    sealed: SealedRelease | None = None
    if consortium is None:
        if any(one is not None for one in (release_id, records, shares)):
            raise InvalidInput("release_id=, records= and shares= are for a sealed release; pass consortium=, too.")
        opened = open_statistics(study, data, **given)
    else:
        _check_agreed(release_id, records)
        opened, sealed = open_sealed_statistics(
            study, data, consortium=consortium, release=str(release_id), records_in_all=int(records or 0), shares=shares,
            **given,
        )  # fmt: skip
    terms, name = opened.terms, opened.name
    statement = Statement(
        epsilon=float(epsilon),
        delta=float(delta),
        mu=mu,
        releases=copies * terms.size,
        spent_mu=float(np.sqrt(terms.charge / QUANTA_PER_UNIT)),
        n=terms.n,
        lattice_slack=lattice_slack(epsilon),
        sensitivity=_sensitivity_words(family, terms.sensitivity),
        exact=EXACT_CLAMPED if outside == "clamp" else EXACT,
        precision="float64",
        shared_ledger=ledger is not None,
        outside=outside,
        sealed=None
        if consortium is None or sealed is None
        else _sealed_promise(consortium, sealed, terms.sensitivity, (terms.sd, copies), delta),
    )
    header = {
        "format": bundle_file.FORMAT, "id": name, "family": family_fingerprint(family),
        "description": repr(replace(family, prior=None)), "n": terms.n, "copies": copies, "size": terms.size,
        "xi": terms.xi, "gamma": terms.gamma, "sensitivity": terms.sensitivity, "epsilon": float(epsilon),
        "delta": float(delta), "mu": mu, "outside": outside, "statement": plain_fields(statement),
    }  # fmt: skip
    if sealed is not None:
        header["sealed"] = msgspec.to_builtins(sealed)
    try:
        with ticker(progress) as tick:
            return _write(header, opened.release, family, None if path is None else Path(path), tick)
    finally:
        opened.close()


def _write(header: dict[str, Any], draw: Callable[[], Any], family: Family, path: Path | None, tick: Tick) -> Bundle:
    total, done = header["copies"], 0
    if path is None:
        values = np.empty((total, header["size"]), bundle_file.number_kind(header))
        for rows in draw():
            values[done : done + len(rows)] = rows
            done += len(rows)
            tick(done, total, "releasing")
        return Bundle(header, values=values, family=family)
    with bundle_file.Writer(path, header) as writer:  # opened before a quantum is spent
        for rows in draw():
            writer.write(rows)
            done += len(rows)
            tick(done, total, "releasing")
    return Bundle(header, path=path, family=family)


def _check_agreed(release_id: str | None, records: int | None) -> None:
    if not (isinstance(release_id, str) and 0 < len(release_id) <= 100 and release_id.isprintable()):
        raise InvalidInput(
            f"a sealed release has an id that all owners agreed on, 1 to 100 characters; got {release_id!r:.80}."
        )
    if isinstance(records, bool) or not isinstance(records, int | np.integer) or records < 2:
        raise InvalidInput(f"a sealed release states the records of all owners together, records=..., got {records!r}.")


def _sealed_promise(
    consortium: Consortium, sealed: SealedRelease, moved: float, noise: tuple[float, int], delta: float
) -> SealedPromise:
    r"""Against everybody all copies cost :math:`k\Delta^2/\xi_i`, settled beforehand like everything else here."""
    sd, copies = noise
    mu = float(moved * copies**0.5 / (sd * sealed.shares[sealed.position] ** 0.5))
    if consortium.everybody is not None and mu > budget_mu(*consortium.everybody):
        raise InvalidInput(
            f"against all other members this release would be worth mu = {mu:.4g}, and the owner promised no more than epsilon, "
            f"delta = {consortium.everybody}; agree on more noise or on another share of it."
        )
    return SealedPromise(
        consortium=consortium.roster.name, members=sealed.members, colluders=sealed.colluders, mu=mu,
        epsilon=epsilon_of(mu, delta), delta=float(delta), spent_mu=mu,
    )  # fmt: skip


def _check_request(copies: int, size: int, xi: float | None) -> None:
    if isinstance(copies, bool) or not isinstance(copies, int | np.integer) or copies < 1:
        raise InvalidInput(f"copies must be a whole number of at least one, got {copies!r}.")
    if copies * size > MAX_RELEASES:
        raise InvalidInput(
            f"a bundle may hold {MAX_RELEASES:,} numbers, got {copies:,} copies of {size}; release fewer copies."
        )
    if xi is not None and not (isinstance(xi, int | float | np.number) and np.isfinite(xi) and float(xi) > 0):
        raise InvalidInput(f"xi must be a positive number, got {xi!r}.")


def _sensitivity_words(family: Family, sensitivity: float) -> str:
    how = "exactly" if family.exact_diameter else "by a proven bound"
    return f"One record moves the released sum by at most {sensitivity:.6g}, known {how}."
