"""`owner.toml`: every key is checked, a misspelt one is an error, and the defaults keep the node at home."""

import tomllib

import pytest

import sfumato as sf
from sfumato.errors import InvalidInput
from sfumato.files.schema import keys
from sfumato.files.tables import Sensitivity
from sfumato.node import config
from sfumato.node.config import check_listen, read_owner, template


@pytest.fixture
def written(tmp_path):
    def write(change=lambda text: text):
        path = tmp_path / "owner.toml"
        path.write_text(change(template()))
        return path

    return write


def test_the_template_is_a_complete_owners_file(written):
    file = read_owner(written())
    assert list(file.studies) == ["coin"]
    assert file.listen.host == "127.0.0.1"
    assert file.columns == {"y": "said_yes"}
    assert file.budgets.total.epsilon == 3.0
    assert file.limits == config.Limits()


def uncommented(text):
    return "\n".join(line[2:] if line.startswith("# ") and " = " in line else line for line in text.splitlines())


def test_every_commented_line_of_the_template_is_a_key_that_works(written):
    """What a person uncomments must not be an error."""
    file = read_owner(written(uncommented))
    assert file.listen.certificate == "node.pem"
    assert file.budgets.analysts["alice"].epsilon == 2.5
    assert file.studies["coin"].theta_bound == 100.0
    assert (file.data.engine, file.data.workers) == ("ray", 2)


def test_the_template_has_every_key_there_is_with_its_default():
    """`sfumato init shows every key` is what an unknown key is told; a key that is added must be added there."""
    text = uncommented(template())

    def look(kind, table):
        assert set(table) == set(keys(kind)) - {"rest"}
        for key in keys(kind).values():
            if isinstance(key.default, str | float | int) and table[key.name] != key.default:
                [line] = [line for line in text.splitlines() if line.startswith(f"{key.name} = ")]
                assert f'"{key.default}" by default' in line, line
            if key.table not in (None, Sensitivity):  # the keys of a sensitivity go with its kind
                for inner in table[key.name].values() if key.named else [table[key.name]]:
                    look(key.table, inner)

    look(config.OwnerTables, tomllib.loads(text))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "', 'nam = "', "owner.toml does not know the key 'nam' .did you mean 'name'"),
        ('name = "', '# name = "', "owner.toml must state name"),
        ("[data]", "[dat]", "'dat' .did you mean 'data'"),
        ("[listen]", "[listen.host]", r"host in \[listen\] of .* must be text in quotes"),
        ("[budgets] ", "[budget] ", "'budget' .did you mean 'budgets'"),
        ("[studies.coin]", "[studies]", r"model in \[studies\] of .* must be a table, \[studies.model\]"),
        (
            "# sensitivity = { kind",
            'sensitivity = { kind = "clip", constant = 2.0 } # kind',
            "in .studies.coin.sensitivity. of .*constant",
        ),
        (
            "epsilon = 3.0",
            "epsilon = -3.0",
            r"epsilon in \[budgets.total\] .*owner.toml must be a number above 0, got -3.0",
        ),
        ("epsilon = 3.0", 'epsilon = "3"', "a number above 0, got '3'"),
        ("epsilon = 3.0", "epsilon = nan", "above 0, got nan"),
        ("epsilon = 3.0", "epsilon = inf", "above 0, got inf"),
        ("delta = 1e-6 }         # everything", "delta = 1.5 }         # everything", "delta"),
        ("[studies.coin]", '[studies."../etc"]', "a name is made of"),
        ("[studies.coin]", '[studies."a.b"]', "a name is made of"),
        ("port = 8750", "port = 99999", "65535"),
        ('kind = "binary"', 'kind = "bin"', "kind of a domain"),
        ('outside = "refuse"', 'engine = "spark"', "engine"),
        ('outside = "refuse"', "workers = 2", 'workers in .data. go with engine = "ray"'),
        ('outside = "refuse"', 'engine = "ray"\nworkers = 0', "workers"),
        ("[limits]", "[limits]\nmessages = 3", "'messages'.* allowed are message_bytes"),
        ('host = "127.0.0.1"', 'host = "127.0.0.1"\ncertificate = "a.pem"', "together"),
    ],
)
def test_what_breaks_a_rule_is_named(written, old, new, words):
    path = written(lambda text: text.replace(old, new, 1))
    assert new in path.read_text()
    with pytest.raises(InvalidInput, match=words):
        read_owner(path)


def test_a_table_in_shards_lies_beside_the_file_or_where_its_address_says(written, tmp_path):
    def at(path):
        text = f'path = "{path}"\nengine = "ray"\nworkers = 3\naddress = "ray://head:10001"'
        return read_owner(written(lambda old: old.replace('path = "people.csv"', text))).records()

    assert at("visits/*.parquet") == sf.RayTable(tmp_path / "visits/*.parquet", address="ray://head:10001", workers=3)
    assert at("s3://bucket/*.parquet").pattern == "s3://bucket/*.parquet"
    assert read_owner(written()).records() == tmp_path / "people.csv"


def test_a_missing_or_broken_file_is_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match="sfumato init"):
        read_owner(tmp_path / "nowhere.toml")
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        read_owner(tmp_path / "broken.toml")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_certificate(host):
    check_listen(config.Listen(host=host), dev=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "node.example", "localhost.evil.example"])  # noqa: S104
def test_any_other_address_needs_tls_or_dev(host):
    with pytest.raises(InvalidInput, match="needs TLS"):
        check_listen(config.Listen(host=host), dev=False)
    check_listen(config.Listen(host=host), dev=True)
    check_listen(config.Listen(host=host, certificate="a", key="b"), dev=False)


def test_every_limit_is_in_the_manual():
    from pathlib import Path

    manual = (Path(__file__).parents[3] / "docs" / "how-to" / "run-a-node.md").read_text()
    for name in config.Limits.__struct_fields__:
        assert f"`{name}`" in manual, name
