"""Golden runs: decisions and charges as they were, numbers within 1e-9, words to the letter."""

import json

import numpy as np
import pytest

from golden.golden_cases import CASES, FOLDER, run_case

CLOSE = 1e-9
NUMBERS = ("plan", "pilot_share", "spent_mu")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*fork.*:RuntimeWarning", "ignore::ResourceWarning"
)


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_what_it_was(name):
    words, transcript = run_case(name)
    with np.load(FOLDER / f"{name}.npz") as kept:
        before = json.loads(str(kept["words"]))
        assert set(transcript) == set(kept.files) - {"words"}
        for field, value in transcript.items():
            if value.dtype == bool:
                assert np.array_equal(value, kept[field]), field
            else:
                np.testing.assert_allclose(value, kept[field], rtol=CLOSE, atol=CLOSE, err_msg=field)
    for field in set(before) - set(NUMBERS):
        assert words[field] == before[field], field
    for field in NUMBERS:
        now, then = (json.dumps(w[field], sort_keys=True) for w in (words, before))
        assert _numbers(now) == pytest.approx(_numbers(then), rel=CLOSE), field


def _numbers(text: str) -> list[float]:
    """All numbers of a piece of JSON, in order; words must be equal."""
    found: list[float] = []

    def note(value: object) -> None:
        if isinstance(value, dict):
            for part in value.values():
                note(part)
        elif isinstance(value, list):
            for part in value:
                note(part)
        else:
            found.append(float(value) if isinstance(value, int | float) else float(hash(value) % 2**20))

    note(json.loads(text))
    return found
