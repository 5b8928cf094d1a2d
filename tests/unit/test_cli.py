"""The command line: what it prints, where, and how it ends."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import sfumato
from sfumato.cli import app, endings, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_coin"
HEAVY = ("jax", "numpy", "numpyro", "pandas", "scipy", "arviz", "matplotlib", "pyarrow", "opendp")


def call(capsys, *arguments):
    """Run a command in this process: exit code, standard output, standard error."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def call_json(capsys, *arguments):
    code, out, _ = call(capsys, *arguments, "--json")
    return code, json.loads(out)


def make_study(folder, **changes):
    """Copy the example, with its data and with lines of [study] changed or added."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("people.csv", "__pycache__"))
    subprocess.run([sys.executable, folder / "make_data.py"], check=True)
    study = folder / "study.toml"
    lines = [line for line in study.read_text().splitlines() if line.split(" =")[0] not in changes]
    at = lines.index("[study]") + 1
    lines[at:at] = [f"{key} = {value}" for key, value in changes.items() if value is not None]
    study.write_text("\n".join(lines) + "\n")
    return study


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("SFUMATO_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("SFUMATO_DEBUG", raising=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the example once, as a person would."""
    folder = tmp_path_factory.mktemp("coin")
    study = make_study(folder / "study", kernel='"guided"', epsilon=2.0)  # some 400 draws: no verdict hangs on chance
    environment = os.environ | {"SFUMATO_STATE": str(folder / "state")}
    command = [sys.executable, "-c", "import sys; from sfumato.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "run", study, "--out", folder / "out", "--seed", "5", "--json"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    return done, folder / "out"


# -- help -------------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; from sfumato.cli import main; code = main(['--help']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.stderr.strip() == "[]"
    assert "Exit codes" in done.stdout
    assert min(seconds) < 0.5  # processor time: the clock would measure what else the machine does


def commands(group, path=()):
    import typer.main

    tree = typer.main.get_command(group) if not path else group
    for name, command in getattr(tree, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_speaks_json_and_has_help():
    found = dict(commands(app))
    assert {("demo",), ("plan",), ("run",), ("resume",), ("report",), ("doctor",), ("ledger", "show")} <= set(found)
    for path, command in found.items():
        assert any("--json" in getattr(p, "opts", []) for p in command.params), path
        assert command.help, path


def test_flags_take_no_value_and_the_shell_can_complete():
    import typer.main
    from typer.testing import CliRunner

    shown = CliRunner(env={"COLUMNS": "100"})
    for path, _ in commands(app):
        text = shown.invoke(app, [*path, "--help"]).output
        assert "<bool>" not in text and "--json" in text, path
    assert {"--install-completion", "--show-completion"} <= {
        option for param in typer.main.get_command(app).params for option in param.opts
    }


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"sfumato {sfumato.__version__}\n", "")


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_writes_everything_and_json_alone_on_stdout(finished):
    done, out = finished
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert done.stderr == ""  # nobody watches: no bar, no warnings
    assert answer["ok"] and answer["study"] == "How many would say yes?"
    assert answer["verdict"]["level"] in ("good", "rough") and answer["verdict"]["reasons"]
    [p] = answer["posterior"]
    assert p["name"] == "p"
    # The exact posterior is Beta(6001, 14001): mean 0.30002, sd 0.00324. Seven Monte Carlo errors of about sd / 16.
    assert abs(p["mean"] - 0.30002) < 7 * 0.00324 / 16
    assert 0.5 < p["sd"] / 0.00324 < 2
    assert answer["privacy"]["epsilon"] == 2.0 and answer["privacy"]["n"] == 20000
    assert {path.name for path in out.iterdir()} >= {
        "run.npz",
        "report.html",
        "statement.txt",
        "study.toml",
        "checkpoint",
    }
    assert (out / "statement.txt").read_text().strip() == answer["statement"]
    assert "How many would say yes?" in (out / "report.html").read_text(encoding="utf-8")
    assert sfumato.load(out / "run.npz").iterations == answer["iterations"]


def test_the_draws_can_be_read_as_netcdf_or_it_is_said_why_not(finished):
    done, out = finished
    answer = json.loads(done.stdout)
    assert (out / "draws.nc").exists() is ("draws" in answer["files"])
    assert ("draws" in answer["files"]) is not any("draws.nc" in remark for remark in answer["remarks"])


def test_a_run_that_is_of_no_use_says_so_first_and_ends_with_its_own_code(capsys, tmp_path):
    study, out = make_study(tmp_path / "s", kernel='"guided"', epsilon=0.05), tmp_path / "out"
    code, text, _ = call(capsys, "run", study, "--out", out, "--force")
    assert code == endings.UNUSABLE == 8
    shown, _, after = text.partition("Verdict: ")
    assert shown.lstrip().startswith("Plan: ") and "--force goes on" in shown  # before it spends
    assert after.startswith("do not use.") and "known to" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    [mean] = re.findall(r"^ *p +([\d.]+)", text, re.MULTILINE)  # what the releases say, in place of the chain's mean
    released = sfumato.load(out / "noise-aware.npz").draws["p"]
    assert float(mean) == pytest.approx(released.mean(), abs=0.06 * released.std())
    assert "Do not use these draws" in (out / "report.html").read_text(encoding="utf-8")
    code, answer = call_json(capsys, "resume", out)
    assert (code, answer["ok"], answer["code"]) == (8, False, "unusable")
    assert answer["verdict"]["level"] == "unusable" and answer["posterior"][0]["mean"] is None


def test_missing_netcdf_is_a_remark_not_a_failure(finished, tmp_path, monkeypatch):
    from sfumato.analysis.result import Run
    from sfumato.cli import outputs

    run = sfumato.load(finished[1] / "run.npz")
    monkeypatch.setattr(Run, "to_arviz", lambda self: (_ for _ in ()).throw(ImportError("no h5netcdf")))
    written = outputs.write(run, tmp_path / "out", "title")
    assert "draws" not in written.files and "draws.nc was not written" in written.remarks[0]
    assert written.files["run"].exists() and written.files["report"].exists()


def test_a_finished_run_is_never_overwritten(finished, capsys, tmp_path):
    before = (finished[1] / "run.npz").read_bytes()
    code, answer = call_json(capsys, "run", make_study(tmp_path / "s"), "--out", finished[1])
    assert (code, answer["ok"], answer["code"]) == (2, False, "invalid-input")
    assert (finished[1] / "run.npz").read_bytes() == before


def test_report_of_a_saved_run(finished, capsys, tmp_path):
    code, answer = call_json(capsys, "report", finished[1] / "run.npz", "--out", tmp_path / "r.html", "--title", "Mine")
    assert code == 0 and (answer["ok"], answer["report"]) == (True, str(tmp_path / "r.html"))
    assert answer["verdict"]["level"] in ("good", "rough")
    assert "<h1>Mine</h1>" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert call_json(capsys, "report", tmp_path / "none.npz")[0] == endings.INVALID
    assert call_json(capsys, "report", EXAMPLE / "model.py")[0] == endings.CHECKPOINT
    nowhere = call_json(capsys, "report", finished[1] / "run.npz", "--out", tmp_path / "no" / "r.html")
    assert nowhere[0] == endings.INVALID and "--out" in nowhere[1]["error"]


def test_a_person_sees_tables(finished, capsys):
    from sfumato.cli import outputs, show

    run = sfumato.load(finished[1] / "run.npz")
    show.run(run, outputs.Written({"run": finished[1] / "run.npz"}, ["a remark"]), "[bold]name[/bold]")
    out, err = capsys.readouterr()
    for piece in (
        "[bold]name[/bold]",
        "R-hat",
        "0.30",
        "differential privacy",
        "budget is spent",
        "run.npz",
        "a remark",
    ):
        assert piece in out
    assert err == ""


# -- audit ------------------------------------------------------------------------------------------------------------


def audited(folder):
    """A study whose data file does not exist: an audit never looks for it."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("people.csv", "__pycache__"))
    study = folder / "study.toml"
    study.write_text(study.read_text().replace("[study]\n", '[study]\nkernel = "guided"\npilot_share = 0.0\n'))
    return study


def test_an_audit_of_an_honest_study(capsys, tmp_path):
    code, answer = call_json(capsys, "audit", audited(tmp_path / "s"), "--trials", 60, "--confidence", 0.99999)
    assert (code, answer["ok"], answer["study"]) == (0, True, "How many would say yes?")
    found = answer["audit"]
    assert (found["epsilon_promised"], found["kernel"], found["n"], found["chains"]) == (1.0, "guided", 20_000, 2)
    assert found["mu_lower"] <= found["mu_promised"] and found["mu_at_stake"] > 0.9 * found["mu_promised"]
    assert [attack["replaced"] for attack in found["attacks"]] == [1, 11]


def test_an_audit_that_refutes_the_promise(capsys, tmp_path, monkeypatch):
    from sfumato.vault import vault
    from sfumato.vault.gaussian import ExactSource

    class TooQuiet(ExactSource):
        def draw(self, size):
            return super().draw(size) // 4

    monkeypatch.setattr(vault, "source_for", lambda scale, *_: TooQuiet(scale))
    code, out, err = call(capsys, "audit", audited(tmp_path / "s"), "--trials", 120)
    assert code == endings.REFUTED == 7
    assert err.splitlines()[-1] == "attacking: 360 of 360" and len(err.splitlines()) <= 12  # progress, by tenths
    for piece in (
        "Audit: How many would say yes?",
        "FAILED",
        "before the cause is found",
        "nobody's budget",
        "11 records replaced",
    ):
        assert piece in out


def test_an_audit_asks_no_node(capsys, tmp_path):
    study = audited(tmp_path / "s")
    text = study.read_text()
    start, end = text.index("[data]"), text.index("[guess]")
    study.write_text(text[:start] + '[data]\nnode = "https://hospital:8750"\n\n' + text[end:])
    code, answer = call_json(capsys, "audit", study)
    assert (code, answer["code"]) == (endings.INVALID, "invalid-input") and "[domain.*]" in answer["error"]


# -- interrupted, killed, resumed -------------------------------------------------------------------------------------


def test_interrupted_then_resumed(capsys, tmp_path, monkeypatch):
    from sfumato.run import chain

    study, out = make_study(tmp_path / "s", seed=3, pilot_share=0.0, kernel='"guided"'), tmp_path / "out"
    study.write_text(study.read_text().replace("p = 0.5", "p = 0.3"))  # without a pilot, a chain starts at the guess
    monkeypatch.setattr(chain, "CHUNK_TERMS", 2 * 2 * 100)  # two kinds, two chains: chunks of a hundred steps

    @contextmanager
    def after_two_chunks():
        asked = iter([False, False])
        yield lambda: next(asked, True)

    with monkeypatch.context() as patch:
        patch.setattr(chain, "until_asked", after_two_chunks)
        code, first = call_json(capsys, "run", study, "--out", out)
    assert code == endings.INTERRUPTED
    assert first["ok"] and first["stop_reason"] == "INTERRUPTED" and first["iterations"] == 200
    assert (out / "run-partial.npz").exists() and not (out / "run.npz").exists()
    so_far = sfumato.load(out / "run-partial.npz").transcript["theta"]

    again = call_json(capsys, "run", study, "--out", out)
    assert again[0] == endings.CHECKPOINT and "sfumato resume" in again[1]["error"]

    code, text, _ = call(capsys, "resume", out / "checkpoint")
    assert code == 0 and "Posterior" in text
    whole = sfumato.load(out / "run.npz")
    assert whole.stop_reason.name == "BUDGET_SPENT" and not (out / "run-partial.npz").exists()
    assert np.array_equal(whole.transcript["theta"][:, :200], so_far) and whole.iterations > 200
    assert whole.privacy.spent_mu <= whole.privacy.mu


def test_resume_needs_a_run_and_its_study(finished, capsys, tmp_path):
    code, answer = call_json(capsys, "resume", tmp_path)
    assert code == endings.CHECKPOINT and "holds no run" in answer["error"]
    shutil.copytree(finished[1] / "checkpoint", tmp_path / "alone")
    code, answer = call_json(capsys, "resume", tmp_path / "alone")
    assert code == endings.INVALID and "--study" in answer["error"]


# -- plan, and budgets that do not suffice ----------------------------------------------------------------------------


def test_plan_of_the_example(capsys):
    code, out, err = call(capsys, "plan", EXAMPLE / "study.toml")  # its data file need not exist
    assert (code, err) == (0, "")
    assert "20,000" in out and "forecast" in out and "Too weak" not in out


def test_an_example_reaches_the_plan_and_the_run(capsys, tmp_path):
    study = make_study(tmp_path / "s", kernel='"guided"', iterations=2)
    text = study.read_text()
    study.write_text(text + "\n[example]\ny = [0, 0, 0, 1]\n")
    _, answer = call_json(capsys, "plan", study)
    assert "public example records" in answer["plan"]["assumptions"]
    study.write_text(text + "\n[example]\ny = [0, 2]\n")  # no record of the domain
    for command in (["plan", study], ["run", study, "--out", tmp_path / "out"]):
        code, answer = call_json(capsys, *command)
        assert code == endings.INVALID and "example['y'] must hold records of its domain" in answer["error"]


def test_another_number_of_records_than_the_study_says_is_refused(capsys, tmp_path):
    study = make_study(tmp_path / "s", kernel='"guided"')
    study.write_text(study.read_text().replace("n = 20000", "n = 19999"))
    code, answer = call_json(capsys, "run", study, "--out", tmp_path / "out")
    assert code == endings.INVALID and "n = 19,999" in answer["error"] and "20,000" in answer["error"]
    assert not (tmp_path / "out" / "checkpoint").exists()  # nothing was spent


def test_a_weak_plan_ends_with_three_and_leaves_the_way_free(capsys, tmp_path):
    study, out = make_study(tmp_path / "s", epsilon=0.05, kernel='"guided"'), tmp_path / "out"
    code, text, _ = call(capsys, "plan", study)
    assert code == endings.TOO_WEAK and "Too weak" in text and "--force" in text
    code, answer = call_json(capsys, "plan", study)
    assert code == endings.TOO_WEAK and answer["ok"] is False and answer["plan"]["weak"] is True
    code, answer = call_json(capsys, "run", study, "--out", out)
    assert (code, answer["code"]) == (endings.TOO_WEAK, "plan-too-weak") and answer["plan"]["weak"] is True
    assert not (out / "checkpoint").exists()  # nothing was spent: the same folder can be used again


def test_an_empty_ledger_ends_with_four(capsys, tmp_path):
    ledger = '{ path = "p.ledger", epsilon = 1.0, delta = 1e-6 }'
    study = make_study(tmp_path / "s", ledger=ledger, kernel='"guided"')
    with sfumato.Ledger(tmp_path / "s" / "p.ledger", epsilon=1.0, delta=1e-6) as shared:
        block = shared.account("somebody else", shared.cap).reserve(shared.cap - 10)
        block.settle(shared.cap - 10)
    code, answer = call_json(capsys, "run", study, "--out", tmp_path / "out")
    assert (code, answer["code"]) == (endings.NO_BUDGET, "budget-spent")
    (tmp_path / "s" / "p.ledger").write_text("not a ledger")
    code, answer = call_json(capsys, "run", study, "--out", tmp_path / "out2")
    assert (code, answer["code"]) == (endings.NO_BUDGET, "ledger")


# -- errors -----------------------------------------------------------------------------------------------------------


def test_a_bad_study_is_one_paragraph_and_no_traceback(capsys, tmp_path):
    study = make_study(tmp_path / "s", epsilom=1)
    code, out, err = call(capsys, "run", study, "--out", tmp_path / "out")
    assert (code, out) == (endings.INVALID, "")
    assert err.startswith("Error: ") and "epsilom" in err and "Traceback" not in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "code", "piece"),
    [
        ({"epsilon": -1.0}, "invalid-input", "epsilon"),
        ({"delta": 1.5}, "invalid-input", "delta"),
        ({"kernel": '"hmc"'}, "invalid-input", "kernel"),
        ({"model": '"model.py:none"'}, "invalid-input", "none"),
        ({"outside": '"ignore"'}, "invalid-input", "outside"),
    ],
)
def test_bad_values_are_named(capsys, tmp_path, changes, code, piece):
    exit_code, answer = call_json(capsys, "run", make_study(tmp_path / "s", **changes), "--out", tmp_path / "out")
    assert (exit_code, answer["ok"], answer["code"]) == (endings.INVALID, False, code)
    assert piece in answer["error"]
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_records_outside_the_domain_are_refused_without_quoting_them(capsys, tmp_path):
    study = make_study(tmp_path / "s")
    with (tmp_path / "s" / "people.csv").open("a") as file:
        file.write("99999,7231\n")
    code, answer = call_json(capsys, "run", study, "--out", tmp_path / "out")
    assert (code, answer["code"]) == (endings.INVALID, "invalid-data")
    assert "7231" not in answer["error"] and "clamp" in answer["error"]


def test_wrong_usage(capsys):
    code, out, err = call(capsys, "run")
    assert code == 2 and out == "" and "STUDY" in err
    code, answer = call_json(capsys, "run")
    assert code == 2 and answer["ok"] is False and answer["code"] == "usage" and "STUDY" in answer["error"]
    assert call(capsys, "nonsense")[0] == 2


def test_foreign_exceptions_are_told_by_type_only(capsys, tmp_path, monkeypatch):
    from sfumato.files import study as studyfile

    def broken(path):
        raise RuntimeError("patient 17 is ill")

    monkeypatch.setattr(studyfile, "read_study", broken)
    code, out, err = call(capsys, "plan", tmp_path / "study.toml")
    assert code == endings.UNEXPECTED and out == ""
    assert "RuntimeError" in err and "17" not in err and "Traceback" not in err
    code, answer = call_json(capsys, "plan", tmp_path / "study.toml")
    assert (code, answer["code"]) == (endings.UNEXPECTED, "unexpected") and "17" not in answer["error"]
    monkeypatch.setenv("SFUMATO_DEBUG", "1")
    assert "Traceback" in call(capsys, "plan", tmp_path / "study.toml")[2]


def test_ctrl_c_before_the_chain(capsys, tmp_path, monkeypatch):
    from sfumato.run import sampling as sampler

    def pressed(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler, "make_plan", pressed)
    assert call(capsys, "run", make_study(tmp_path / "s"), "--out", tmp_path / "out")[0] == endings.INTERRUPTED
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_every_error_of_the_tree_has_an_ending():
    from sfumato import errors

    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SfumatoError):
            assert kind in endings.ENDINGS


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_finds_this_installation_fine(capsys):
    code, answer = call_json(capsys, "doctor")
    assert code == 0 and answer["ok"], answer
    assert {check["name"] for check in answer["checks"]} >= {"noise, OpenDP", "noise, vectorised", "ledger", "penalty"}
    assert answer["versions"]["sfumato"] == sfumato.__version__
    code, out, _ = call(capsys, "doctor")
    assert code == 0 and "WRONG" not in out


@pytest.mark.parametrize("illness", ["same block", "too narrow", "shifted", "raises"])
def test_doctor_finds_a_sick_noise_source(capsys, monkeypatch, illness):
    from sfumato.vault import gaussian

    def draw(self, size):
        if illness == "raises":
            raise RuntimeError("secret")
        rng = np.random.default_rng(1 if illness == "same block" else None)
        scale = self.scale * (0.8 if illness == "too narrow" else 1)
        return np.rint(rng.normal(300 if illness == "shifted" else 0, scale, size)).astype(np.int64)

    monkeypatch.setattr(gaussian.ExactSource, "draw", draw)
    code, out, _ = call(capsys, "doctor")
    assert code == endings.UNEXPECTED and out.count("WRONG") == 1 and "secret" not in out


def test_doctor_finds_a_missing_penalty(capsys, monkeypatch):
    import jax.numpy as jnp

    from sfumato.kernel import penalty

    monkeypatch.setattr(penalty, "log_alpha", lambda d, p, q, s: jnp.minimum(0.0, d + p + q))
    code, answer = call_json(capsys, "doctor")
    assert code == endings.UNEXPECTED
    assert [check["name"] for check in answer["checks"] if not check["ok"]] == ["penalty"]


# -- demo -------------------------------------------------------------------------------------------------------------


def small_census(n=12_000):
    rng = np.random.default_rng(0)
    data = {
        name: (rng.random(n) < share).astype(np.int8)
        for name, share in [("veteran", 0.5), ("nonwhite", 0.3), ("younger", 0.5)]
    }
    logits = -0.2 + 0.8 * data["veteran"] - 1.2 * data["nonwhite"] - 1.4 * data["younger"]
    return data | {"owner": (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(np.int8)}


def test_demo_from_plan_to_report(capsys, tmp_path, monkeypatch):
    from sfumato.demo import census as demo

    monkeypatch.setattr(demo, "load", small_census)
    code, out, _ = call(capsys, "demo", "--out", tmp_path / "d", "--epsilon", "6")
    assert code == 0
    for piece in (
        "214,144 men",
        "12,000",
        "forecast",
        "private mean",
        "born later",
        "R-hat",
        "differential privacy",
        "report.html",
    ):
        assert piece in out
    assert (tmp_path / "d" / "report.html").exists()


def test_the_comparison_of_the_demo_is_the_posterior_mode():
    from sfumato.demo import census as demo

    data = small_census(50_000)
    fit = demo.non_private_fit(data)
    assert np.all(np.abs(fit.mean - [-0.2, 0.8, -1.2, -1.4]) < 5 * fit.sd)
    design = np.stack([np.ones(50_000), *(data[name] for name in demo.COVARIATES)], axis=1)
    slope = design.T @ (data["owner"] - 1 / (1 + np.exp(-design @ fit.mean))) - fit.mean
    assert np.all(np.abs(slope) < 1e-6)


def test_the_census_extract_is_what_the_demo_says():
    from sfumato.demo import census as demo

    data = demo.load()
    assert {name: len(column) for name, column in data.items()} == dict.fromkeys(
        ("veteran", "nonwhite", "younger", "owner"), 214_144
    )
    assert all(set(np.unique(column)) == {0, 1} for column in data.values())


def test_a_missing_data_package_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "causaldata", None)
    code, answer = call_json(capsys, "demo", "--out", tmp_path / "d")
    assert code == endings.INVALID and "pip install 'sfumato[demo]'" in answer["error"]
