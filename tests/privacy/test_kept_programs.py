"""What is kept of compiled programs holds no record, lies where nobody else may write, and does no harm where it is broken."""

import contextlib
import os
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sfumato as sf
from sfumato.tools import kept_programs as kept

SENTINEL = 0.7390851332151607
"""A record's value that no program has by chance."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder of its own, and no cache of JAX's that the tests have for speed."""
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "programs"))
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    reset_cache()


def entries(folder: Path) -> dict[str, bytes]:
    from jax._src.compilation_cache import decompress_executable

    return {path.name: decompress_executable(path.read_bytes()) for path in folder.rglob("*-cache")}


def holds(folder: Path, value: float) -> bool:
    """Whether a program has a number of a record in it, in either precision, as bits or as text."""
    forms = [struct.pack("<d", value), struct.pack("<f", value), repr(value)[:9].encode()]
    return any(form in entry for entry in entries(folder).values() for form in forms)


def unusual(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.7))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=slope * x), obs=y)


class Begun(Exception):
    """Some draws are there."""


def run_of(model, domain, table, kernel):
    def stop(done, expected, text):
        if done > 0 and text == "sampling":
            raise Begun

    with contextlib.suppress(Begun):
        sf.sample(
            model,
            table,
            domain=domain,
            epsilon=2.0,
            delta=1e-6,
            kernel=kernel,
            chains=2,
            seed=1,
            force=True,
            progress=stop,
        )


@pytest.mark.parametrize("kernel", ["langevin", "guided"])
def test_no_program_of_a_run_has_a_record_in_it(kernel, cache):
    n = 9_000  # more than a block
    table = {"x": np.full(n, SENTINEL), "y": np.tile([0, 1, 1], n // 3)}
    run_of(unusual, {"x": sf.Interval(-1, 1), "y": sf.Binary()}, table, kernel)
    assert any("jit_run" in name for name in entries(cache))  # the chains' own loop is among them
    assert not holds(cache, SENTINEL)


def test_a_program_with_a_record_in_it_would_be_seen(cache):
    with kept.kept_programs(), jax.enable_x64(True):
        wide = jnp.asarray(np.full(50, SENTINEL))
        jax.jit(lambda theta: jnp.sum(jnp.sin(theta * wide) * theta))(jnp.ones(()))
    assert holds(cache, SENTINEL)


def test_what_the_caller_compiles_is_not_kept(cache):
    with kept.kept_programs():
        jax.jit(lambda x: x * 3.25 + 1)(jnp.ones(3))
    inside = set(entries(cache))
    jax.jit(lambda x: x * 4.75 + 2)(jnp.ones(3))
    assert inside and set(entries(cache)) == inside
    assert jax.config.jax_compilation_cache_dir is None


def test_it_can_be_switched_off_and_leaves_a_callers_own_cache_alone(cache, monkeypatch, tmp_path):
    monkeypatch.setenv(kept.VARIABLE, "off")
    with kept.kept_programs():
        assert jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv(kept.VARIABLE, str(cache))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    with kept.kept_programs():
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    assert not cache.exists()


def test_the_folder_is_the_users_alone(cache):
    with kept.kept_programs():
        assert Path(jax.config.jax_compilation_cache_dir) == kept.folder()
    assert kept.folder().stat().st_mode & 0o777 == 0o700
    os.chmod(kept.folder(), 0o770)  # noqa: S103 (refused, as it should be)
    with kept.kept_programs():  # somebody else could put a program there
        assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_others_could_swap_is_not_used(cache, tmp_path):
    with kept.kept_programs():
        assert jax.config.jax_compilation_cache_dir is not None
    os.chmod(tmp_path, 0o777)  # noqa: S103 (somebody else could put another folder in its place)
    with kept.kept_programs():
        assert jax.config.jax_compilation_cache_dir is None


def test_unfinished_entries_and_those_beyond_the_size_are_dropped(cache, monkeypatch):
    with kept.kept_programs():
        jax.jit(lambda x: x * 5.5 + 1)(jnp.ones(3))
    folder = kept.folder()
    whole = {path.name for path in folder.glob("*-cache")}
    broken = folder / "jit_half-0123-cache"
    broken.write_bytes(next(folder.glob("*-cache")).read_bytes()[:40])
    with kept.kept_programs():
        assert not broken.exists()
    assert {path.name for path in folder.glob("*-cache")} == whole
    monkeypatch.setattr(kept, "MOST_BYTES", 10)
    with kept.kept_programs():
        assert not list(folder.glob("*-cache"))


def test_other_versions_and_other_processors_have_another_folder(monkeypatch):
    before = kept.folder()
    monkeypatch.setattr(kept, "_instructions", lambda: "flags : none")
    assert kept.folder() != before
    monkeypatch.undo()
    monkeypatch.setattr(kept, "version", lambda package: "0.0.1")
    assert kept.folder().parent == before.parent and kept.folder() != before
