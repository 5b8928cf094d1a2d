"""What the documents say is true: their code runs, their names exist, their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "families", "langevin", "owners"))]
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.name)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    code = "\n".join(blocks)
    # Models are identified by their source text, so the page is run from a file, as a reader would.
    path = tmp_path / f"{page.stem.lower()}_page.py"
    path.write_text(code)
    exec(compile(code, str(path), "exec"), {"__name__": "__page__"})  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), target


def test_every_name_in_the_notation_occurs_in_the_code():
    table = (ROOT / "docs" / "notation.md").read_text()
    names = [name for row in table.splitlines() if row.startswith("|") for name in re.findall(r"`(\w+)`", row)]
    assert len(names) > 20
    for name in names:
        assert re.search(rf"\b{name}\b", SOURCE), name


def test_every_command_is_in_the_readme():
    from typer.main import get_command

    from sfumato.cli import app

    readme = (ROOT / "README.md").read_text()
    for name in get_command(app).commands:
        assert f"`sfumato {name}" in readme or f"| {name}" in readme or name in readme, name


def test_dependencies_are_explained_one_by_one():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "dependencies.md").read_text()
    for requirement in project["dependencies"]:
        assert re.split(r"[><=]", requirement)[0] in text


def test_no_page_names_an_absolute_path_of_a_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(home|root|work|Users)/", page.read_text()), page
