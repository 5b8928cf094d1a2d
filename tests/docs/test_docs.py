"""What the documents say is true: their code runs, their names exist, their links lead somewhere."""

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sfumato.kernel import KINDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "how-to/estimate",
            "how-to/several-owners",
            "how-to/prepare-columns",
            "how-to/operate-a-ledger",
            "explanation/langevin",
        )
    ),
    *(ROOT / "docs" / "developer" / f"{name}.md" for name in ("domain", "kernel", "owner")),
]
"""Pages whose code is run here. Tutorials are run by the build of the site (`test_site.py`); pages about families, bundles
and nodes have tests of their own."""
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
    with patch.dict(KINDS):  # a page may register a kernel
        exec(compile(code, str(path), "exec"), {"__name__": "__page__"})  # noqa: S102


@pytest.fixture
def hospital_and_clinic(tmp_path):
    """Two nodes as `sfumato init` writes them, beside the table of the coin example; with alice's tokens."""
    import runpy

    from node_helpers import free_port, threaded
    from sfumato.node.config import MODEL, template
    from sfumato.node.tokens import TokenFile

    make_data = runpy.run_path(str(ROOT / "examples" / "01_coin" / "make_data.py"))["main"]
    nodes = {}
    with ExitStack() as stack:
        for name in ("hospital", "clinic"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "owner.toml").write_text(template(name).replace("port = 8750", f"port = {free_port()}"))
            (folder / "model.py").write_text(MODEL)
            make_data(folder / "people.csv")
            token = TokenFile(folder / "tokens.json").add("alice")
            nodes[name] = stack.enter_context(threaded(folder)).url, token
        yield nodes


def test_an_analyst_can_follow_the_page_about_nodes(hospital_and_clinic, tmp_path, monkeypatch, capsys):
    """Its program and its study files run as they stand, against nodes as `sfumato init` makes them."""
    from sfumato.cli import main
    from sfumato.cli.endings import UNUSABLE
    from sfumato.node.config import MODEL

    text = (
        (ROOT / "docs" / "how-to" / "run-a-node.md")
        .read_text()
        .replace("sfu_alice_...", hospital_and_clinic["hospital"][1])
    )
    for name, (url, _) in hospital_and_clinic.items():
        text = text.replace(f"https://node.{name}.example:8750", url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "clinic.token").write_text(hospital_and_clinic["clinic"][1])
    monkeypatch.setenv("SFUMATO_TOKEN", hospital_and_clinic["hospital"][1])
    monkeypatch.setenv("HOSPITAL_TOKEN", hospital_and_clinic["hospital"][1])
    page: dict[str, Any] = {"__name__": "__page__"}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), "page.py", "exec"), page)  # noqa: S102
    assert 0.2 < page["run"].draws["p"].mean() < 0.4
    assert "of 2 left" in capsys.readouterr().out
    studies = [block for block in re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL) if "[study]" in block]
    assert len(studies) == 2
    for i, study in enumerate(studies):
        (tmp_path / "study.toml").write_text(study)
        assert main(["plan", "study.toml"]) == 0
        ended = main(["run", "study.toml", "--out", f"answers-{i}"])
        # So small a budget that chance alone may end in "do not use" once in a while. The run is there all the same.
        assert ended in (0, UNUSABLE), capsys.readouterr().err
        assert (tmp_path / f"answers-{i}" / "run.npz").exists()
        assert main(["resume", f"answers-{i}"]) == ended
    monkeypatch.delitem(sys.modules, "model", raising=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_on_the_page_have_keys_that_there_are(page):
    """Tables of a study file or of an owner's file, whole or in part: each key is one that the code declares."""
    import tomllib

    from sfumato.files.schema import keys
    from sfumato.files.study import StudyTables
    from sfumato.node.config import OwnerTables

    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), flags=re.DOTALL):
        given = tomllib.loads(block)
        assert set(given) <= set(keys(StudyTables)) | set(keys(OwnerTables)), block


def test_every_name_in_the_notation_occurs_in_the_code():
    table = (ROOT / "docs" / "reference" / "notation.md").read_text()
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


def test_the_reference_of_keys_is_what_the_code_declares():
    """`make reference` writes these pages; a key, a command or a name that was added or changed without it fails here."""
    import runpy

    folder = ROOT / "docs" / "reference"
    written = runpy.run_path(str(folder / "write.py"))["pages"]()
    assert {name: (folder / name).read_text() for name in written} == written
    keys = [written[name] for name in ("study-file.md", "owner-file.md")]
    cells = [row.split(" | ") for text in keys for row in text.splitlines() if row.startswith("| ")]
    assert len(cells) > 70
    assert all(meaning.rstrip(" |") for _, _, _, meaning in cells)


def test_figures_are_drawn_from_the_tables_as_they_are():
    """`make figures` draws them again; a table that was changed without it fails here."""
    import runpy

    folder = ROOT / "docs" / "figures"
    draw = runpy.run_path(str(folder / "draw.py"))
    assert len(draw["FIGURES"]) == 3
    for name in draw["FIGURES"]:
        assert f"table {draw['digest'](name)}" in (folder / f"{name}.svg").read_text(), name


def test_printed_outputs_speak_the_words_of_the_code():
    """`make docs-outputs` prints them anew; a line or a column that the code no longer has fails here."""
    import runpy

    outputs = runpy.run_path(str(ROOT / "docs" / "outputs.py"))
    blocks = outputs["blocks"]()
    assert len(blocks) == 3
    for block in blocks:
        words = outputs["labels"](block["text"])
        assert len(words) >= 6
        for word in words:
            assert word in SOURCE or word.lower() in SOURCE or word.replace(" ", "_") in SOURCE, (
                block["command"],
                word,
            )


def test_dependencies_are_explained_one_by_one():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "reference" / "dependencies.md").read_text()
    for requirement in project["dependencies"]:
        assert re.split(r"[><=]", requirement)[0] in text


def test_no_page_names_an_absolute_path_of_a_machine():
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(home|root|work|Users)/", page.read_text()), page


def test_the_screenshots_are_of_the_pages_as_they_are():
    """`make screenshots` makes them anew."""
    import runpy

    figures = ROOT / "docs" / "figures"
    kept = json.loads((figures / "screenshots.json").read_text())
    assert kept["made_of"] == runpy.run_path(str(figures / "screenshots.py"))["digest"]()
    assert {"report-light", "report-dark", "report-phone", "console-light", "console-dark", "console-phone"} <= {
        page.stem for page in figures.glob("*.png")
    }
