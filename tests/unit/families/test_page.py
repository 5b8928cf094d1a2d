"""The page about families: its code runs, and its table is complete and true."""

import re
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from sfumato import families as f

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "families.md"


def test_the_code_on_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))
    path = tmp_path / "page.py"
    path.write_text(code)
    exec(compile(code, str(path), "exec"), {"__name__": "__page__"})  # noqa: S102
    printed = capsys.readouterr().out
    assert "'support'" in printed and "'bounds'" in printed
    assert printed.strip().endswith("8.0")


def test_every_family_is_in_the_table():
    exported = [getattr(f, name) for name in f.__all__ if isinstance(getattr(f, name), type)]
    named = set(re.findall(r"^\| `(\w+)\(", PAGE.read_text(), flags=re.MULTILINE))
    assert {c.__name__ for c in exported if issubclass(c, f.Family) and c is not f.Family} <= named


@pytest.mark.parametrize(
    ("family", "diameter"),
    [
        (f.Bernoulli(), 1.0),
        (f.Bernoullis(20), 20**0.5),
        (f.Binomial(trials=5), 5.0),
        (f.Categorical(2), 1.0),
        (f.Categorical(4), 2**0.5),
        (f.Poisson(max_count=50), 50.0),
        (f.Geometric(max_count=9), 9.0),
        (f.Exponential(upper=3.0), 3.0),
        (f.Gamma(lower=1.0, upper=np.e), np.hypot(1.0, np.e - 1)),
        (f.Beta(lower=0.25, upper=0.75), 2**0.5 * np.log(3)),
        (f.Normal(scale=2.0, lower=-10, upper=10), 20.0),
        (f.NormalMeanScale(lower=0, upper=1), 2**0.5),
        (f.MultivariateNormal(np.eye(2), y=sf.Ball(2.0, dim=2)), 4.0),
        (f.MultivariateNormal(np.eye(2), y=sf.Box([0, 0], [3, 4])), 5.0),
        (f.MultivariateNormalMeanCovariance(y=sf.Ball(0.5, dim=2)), 1.0),
        (f.MultivariateNormalMeanCovariance(y=sf.Ball(1.0, dim=2)), 4.5**0.5),
        (f.LogLinear({"a": 2, "b": 2}, interactions=[("a", "b")]), 3**0.5),
    ],
    ids=repr,
)
def test_diameters_of_the_table(family, diameter):
    assert family.diameter() == pytest.approx(diameter, rel=1e-12)
