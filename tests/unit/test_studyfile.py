"""Study files: what is accepted, what is refused, and that every refusal names its key and the next step."""

import inspect
from pathlib import Path

import pytest

from sfumato import bounds, domain
from sfumato.errors import InvalidInput, InvalidModel, LedgerError
from sfumato.files.schema import keys
from sfumato.files.study import ESTIMATE_OPTIONS, PLAN_OPTIONS, SAMPLE_OPTIONS, Settings, load_model, read_study

GOOD = """
[study]
model = "model.py:coin"
epsilon = 1.0
delta = 1e-6

[data]
path = "people.csv"
n = 100

[domain.x]
kind = "box"
lower = [0, -1]
upper = [1, 1]
columns = ["age", "dose"]

[domain.y]
kind = "binary"
"""


def write(folder: Path, text: str, name: str = "study.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_study(tmp_path):
    study = read_study(write(tmp_path, GOOD))
    assert study.name == "study"
    assert study.domain() == {"x": domain.Box([0, -1], [1, 1]), "y": domain.Binary()}
    assert study.columns == {"x": ["age", "dose"]}
    assert study.data_path == tmp_path / "people.csv"
    assert study.records() == 100
    assert study.guess is None
    assert study.sensitivity() == "auto"
    assert study.open_ledger() is None
    assert study.options(["chains", "epsilon"]) == {"epsilon": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("epsilon = 1.0", "epsilom = 1.0"),
            ["[study] of", "study.toml", "'epsilom'", "did you mean 'epsilon'", "allowed are model"],
        ),
        (("delta = 1e-6\n", ""), ["[study]", "delta", "must choose"]),
        (("epsilon = 1.0", 'epsilon = "1"'), ["epsilon", "a number", "'1'"]),
        (("epsilon = 1.0", "epsilon = true"), ["epsilon", "a number"]),
        (("epsilon = 1.0", "epsilon = -1"), ["epsilon in [study] of", "above 0", "got -1", "The guarantee"]),
        (("delta = 1e-6", "delta = 1.0"), ["delta in [study] of", "above 0 and below 1", "got 1.0"]),
        (("epsilon = 1.0\ndelta = 1e-6\n", ""), ["[study]", "epsilon and delta", "must choose"]),
        (('model = "model.py:coin"', ""), ["[study] of", "must state model", "no default", "model.py:coin"]),
        (("[study]", "[data.study]"), ["must have a table [study]"]),
        (("[data]", "[guess]"), ["must have a table [data]"]),
        (("[study]", "base = 3\n[study]"), ["base in", "study.toml", "text in quotes", "got 3"]),
        (("epsilon = 1.0", "epsilon = 1.0\noutside = 'drop'"), ["outside in [study]", "clamp, refuse", "'drop'"]),
        (("epsilon = 1.0", "epsilon = 1.0\nchains = 2.5"), ["chains", "a whole number", "2.5"]),
        (("epsilon = 1.0", "epsilon = 1.0\ncheckpoint = true"), ["checkpoint", "leave the line out"]),
        (("epsilon = 1.0", "epsilon = 1.0\nledger = { file = 'x' }"), ["ledger", "'file'", "path"]),
        (("[data]", "[date]"), ["'date'", "data"]),
        (('path = "people.csv"', 'file = "people.csv"'), ["[data]", "'file'", "path"]),
        (("n = 100", 'n = "many"'), ["n in [data]", "whole number"]),
        (('["age", "dose"]', "[1, 2]"), ["columns in [domain.x]", "names"]),
        (("[domain.y]\nkind", "[domain]\ny"), ["domain"]),
        (("[study]", "[study"), ["not valid TOML", "line 2"]),
        (
            ("[domain.y]", "[sensitivity]\nkind = 'magic'\n[domain.y]"),
            ["kind in [sensitivity] of", "auto, certify, clip, lipschitz", "'magic'"],
        ),
        (("[domain.y]", "[sensitivity]\nkind = 'clip'\nboud = 1\n[domain.y]"), ["[sensitivity]", "'boud'", "bound"]),
        (("[domain.y]", "[sensitivity]\nkind = 'clip'\nnorm = 1\n[domain.y]"), ["[sensitivity]", "norm", "bound"]),
        (("[domain.y]", "[sensitivity]\nkind = 'lipschitz'\n[domain.y]"), ["[sensitivity]", "constant"]),
    ],
)
def test_refusals_name_the_key_and_the_way_out(tmp_path, change, words):
    assert change[0] in GOOD
    with pytest.raises(InvalidInput) as caught:
        read_study(write(tmp_path, GOOD.replace(*change)))
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_domain_names_its_table(tmp_path):
    study = read_study(write(tmp_path, GOOD.replace('kind = "box"', 'kind = "sphere"')))
    with pytest.raises(InvalidInput, match=r"in \[domain.x\].*'sphere'"):
        study.domain()


def test_a_missing_file(tmp_path):
    with pytest.raises(InvalidInput, match="no study can be read"):
        read_study(tmp_path / "none.toml")


def test_stated_sensitivity(tmp_path):
    study = read_study(write(tmp_path, GOOD + "\n[sensitivity]\nkind = 'clip'\nper_step = 2.0\n"))
    assert study.sensitivity() == bounds.Clip(per_step=2.0)


def test_n_is_asked_for_where_the_study_does_not_tell_it(tmp_path):
    study = read_study(write(tmp_path, GOOD.replace("n = 100\n", "")))
    with pytest.raises(InvalidInput, match="--n"):
        study.records()


def test_a_ledger_is_made_only_with_a_budget_of_its_own(tmp_path):
    stated = read_study(write(tmp_path, GOOD.replace("epsilon = 1.0", 'epsilon = 1.0\nledger = "a.ledger"')))
    with pytest.raises(InvalidInput, match="does not exist.*epsilon"):
        stated.open_ledger()
    table = 'epsilon = 1.0\nledger = { path = "a.ledger", epsilon = 2.0, delta = 1e-5 }'
    with read_study(write(tmp_path, GOOD.replace("epsilon = 1.0", table))).open_ledger() as ledger:
        assert (ledger.epsilon, ledger.delta) == (2.0, 1e-5)
    with stated.open_ledger() as again:
        assert again.epsilon == 2.0
    other = read_study(write(tmp_path, GOOD.replace("epsilon = 1.0", table.replace("2.0", "3.0"))))
    with pytest.raises(LedgerError):
        other.open_ledger()


def test_a_copy_finds_the_same_files(tmp_path):
    home, out = tmp_path / "home", tmp_path / "deep" / "out"
    home.mkdir()
    out.mkdir(parents=True)
    copy = read_study(write(home, GOOD)).copy_to(out)
    again = read_study(read_study(copy).copy_to(tmp_path))
    for study in (read_study(copy), again):
        assert study.data_path.resolve() == (home / "people.csv").resolve()
        assert study.settings == read_study(home / "study.toml").settings


# -- the model file ---------------------------------------------------------------------------------------------------


def test_the_model_is_imported_from_its_file(tmp_path):
    write(tmp_path, "def coin(y):\n    return y\n", "model.py")
    assert load_model("model.py:coin", tmp_path)(7) == 7


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("model.py", "file and a function"),
        ("model:coin", "file and a function"),
        ("none.py:coin", "no model file"),
        ("model.py:dice", "no function 'dice'"),
        ("model.py:SIDES", "no function 'SIDES'"),
    ],
)
def test_a_wrong_reference(tmp_path, reference, words):
    write(tmp_path, "SIDES = 6\ndef coin(y):\n    return y\n", "model.py")
    with pytest.raises(InvalidInput, match=words):
        load_model(reference, tmp_path)


def test_a_model_file_that_raises_is_told_by_type_and_line_only(tmp_path):
    write(tmp_path, "x = 1\nraise RuntimeError('patient 17 is ill')\n", "model.py")
    with pytest.raises(InvalidModel, match="RuntimeError on line 2") as caught:
        load_model("model.py:coin", tmp_path)
    assert "17" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_every_setting_reaches_the_sampler_or_is_used_here():
    """A key that parses and then does nothing would be a silent default."""
    used_here = {"name", "question", "answer", "model", "epsilon", "delta", "ledger", "checkpoint"}
    assert set(Settings.__struct_fields__) == used_here | set(SAMPLE_OPTIONS) | set(ESTIMATE_OPTIONS)


def test_the_defaults_of_the_reference_are_those_of_the_library():
    from sfumato.run.estimating import estimate
    from sfumato.run.sampling import plan, sample

    declared = {name: key.default for name, key in keys(Settings).items()}
    for function, names in ((sample, SAMPLE_OPTIONS), (plan, PLAN_OPTIONS), (estimate, ESTIMATE_OPTIONS)):
        parameters = inspect.signature(function).parameters
        assert {name: declared[name] for name in names} == {name: parameters[name].default for name in names}


# -- public examples ------------------------------------------------------------------------------------------------------


def test_an_example_is_written_in_the_study_or_beside_it(tmp_path):
    inline = GOOD + "[example]\nx = [[0.1, 0.5], [0.9, -1]]\ny = [0, 1]\n"
    assert read_study(write(tmp_path, inline)).example() == {"x": [[0.1, 0.5], [0.9, -1]], "y": [0, 1]}
    write(tmp_path, "age,dose,y,other\n0.1,0.5,0,a\n0.9,-1,1,b\n", "public.csv")
    beside = GOOD + '[example]\ndata = "public.csv"\n'
    assert read_study(write(tmp_path, beside)).example() == {"x": [[0.1, 0.5], [0.9, -1.0]], "y": [0.0, 1.0]}
    assert read_study(write(tmp_path, GOOD)).example() is None


def test_labels_of_an_example_are_those_of_the_domain(tmp_path):
    write(tmp_path, "y,x_0,x_1\n2,0,0\nmany,1,1\n", "public.csv")
    domain = GOOD.replace('kind = "binary"', 'kind = "categories"\nlabels = [2, "many"]').replace(
        'columns = ["age", "dose"]', ""
    )
    study = read_study(write(tmp_path, domain + '[example]\ndata = "public.csv"\n'))
    assert study.example() == {"x": [[0.0, 0.0], [1.0, 1.0]], "y": [2, "many"]}


@pytest.mark.parametrize(
    ("example", "table", "words"),
    [
        ('data = "people.csv"', "age,dose,y\n", ["public", "'people.csv'", "private records"]),
        ('data = "public.csv"\nn = 3', "", ["not both", "'n'"]),
        ("y = 3", "", ["y = [0.1, 0.7]", "got y = 3"]),
        ('data = "nowhere.csv"', "", ["nowhere.csv", "FileNotFoundError"]),
        ('data = "public.parquet"', "", ["CSV file"]),
        ('data = "public.csv"', "age,y\n0.1,0\n", ["no column ['dose']", "'x'"]),
        ('data = "public.csv"', "age,dose,y\n0.1,old,0\n", ["column 'dose'", "numbers"]),
        ('data = "public.csv"', "age,dose,y\n", ["header line and at least one record"]),
    ],
)
def test_an_example_that_is_none_is_refused(tmp_path, example, table, words):
    write(tmp_path, table, "public.csv")
    with pytest.raises(InvalidInput) as caught:
        read_study(write(tmp_path, GOOD + f"[example]\n{example}\n")).example()
    assert all(word in str(caught.value) for word in words), str(caught.value)
