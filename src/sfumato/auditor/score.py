r"""How much a run's transcript speaks for one table over another: the log-likelihood ratio.

Every released number is Gaussian around a mean that the auditor knows for both tables, so the best test there is (Neyman and
Pearson) compares

.. math:: \Lambda = \sum_t \frac{(a_t - \tfrac12(m_t + m'_t))(m'_t - m_t)}{\sigma_t^2}

with a threshold. The sum of :math:`(m'_t - m_t)^2/\sigma_t^2` is what the run had at stake: for one replaced record it is at
most the squared mu that was charged, run by run, if every charge is right.
"""

from typing import NamedTuple

import numpy as np

from sfumato.auditor.neighbours import Neighbours
from sfumato.auditor.terms import Terms
from sfumato.auditor.trials import Released
from sfumato.kernel import Kernel
from sfumato.protocol.questions import Release


class Digest(NamedTuple):
    """Every number that the runs on one table released, with what it is made of.

    Attributes
    ----------
    run, answer, sigma
        Which run it is of, the number itself, its noise.
    crowd, one, other
        What the crowd adds to its mean; what one record of the two adds, and the other.
    """

    run: np.ndarray
    answer: np.ndarray
    sigma: np.ndarray
    crowd: np.ndarray
    one: np.ndarray
    other: np.ndarray


class Scores(NamedTuple):
    """Log-likelihood ratios, one kind a row, and what was at stake by the first kind: run by run."""

    log_ratio: np.ndarray
    at_stake: np.ndarray


class Digester:
    """Turns what was released into digests; compiled once for all tables.

    Parameters
    ----------
    terms, neighbours
        What records add to answers; which records there are.
    pilot
        The pilot's questions.
    kernel, sigma
        The kernel, and the noise of a step's scalar.
    """

    def __init__(
        self, terms: Terms, neighbours: Neighbours, pilot: list[Release], kernel: Kernel, sigma: float
    ) -> None:
        self._terms, self._neighbours, self._sigma = terms, neighbours, sigma
        self._first_sigma = kernel.proposal_sigma
        self._pilot = [(question.sigma, terms.pilot(question, neighbours.people)) for question in pilot]
        self._first = terms.first(neighbours.people)

    def digest(self, released: Released) -> Digest:
        """Take up everything that runs on one table released."""
        parts = [
            self._vectors(np.arange(len(answers)), answers, sigma, terms)
            for (sigma, terms), answers in zip(self._pilot, released.pilot, strict=True)
        ]
        parts.append(self._vectors(released.first_run, released.first, self._first_sigma, self._first))
        asked = np.isfinite(released.d_n_noisy)
        step = self._terms.step(self._neighbours.people, released.theta[asked], released.theta_prop[asked])
        parts.append(self._scalars(released.run[asked], released.d_n_noisy[asked], self._sigma, step))
        return Digest(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _vectors(self, run: np.ndarray, answers: np.ndarray, sigma: float, terms: np.ndarray) -> Digest:
        """Vectors with the same mean in every run: answers (run, k), terms (record, k)."""
        size = terms.shape[1]
        return self._scalars(np.repeat(run, size), answers.reshape(-1), sigma, np.tile(terms.T, (len(run), 1)))

    def _scalars(self, run: np.ndarray, answers: np.ndarray, sigma: float, terms: np.ndarray) -> Digest:
        """Numbers with a mean each: terms (number, record)."""
        size = len(self._neighbours.counts)
        crowd = terms[:, :size] @ self._neighbours.counts
        return Digest(run, answers, np.full(len(run), sigma), crowd, terms[:, size], terms[:, size + 1])


def score(digests: list[Digest], neighbours: Neighbours, replaced: int, runs: int) -> Scores:
    """Compare the table in which nothing is exchanged with that in which `replaced` rows are; one kind a digest."""
    each = [_score(digest, neighbours, replaced, runs) for digest in digests]
    return Scores(np.stack([scores.log_ratio for scores in each]), each[0].at_stake)


def _score(digest: Digest, neighbours: Neighbours, replaced: int, runs: int) -> Scores:
    moved = replaced * (digest.other - digest.one) / digest.sigma
    middle = digest.crowd + (neighbours.replaced - replaced) * digest.one + replaced * (digest.one + digest.other) / 2
    surprise = (digest.answer - middle) / digest.sigma
    return Scores(*(np.bincount(digest.run, values, minlength=runs) for values in (surprise * moved, moved**2)))
