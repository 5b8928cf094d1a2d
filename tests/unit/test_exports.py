import subprocess
import sys

import sfumato


def test_every_public_name_exists_and_nothing_else_is_promised():
    for name in sfumato.__all__:
        assert getattr(sfumato, name) is not None
    assert sorted(sfumato.__all__) == dir(sfumato)
    assert set(sfumato._HOME) | set(sfumato._MODULES) | {"__version__"} == set(sfumato.__all__)


def test_importing_the_package_does_not_import_jax():
    code = (
        "import sys, sfumato; sfumato.Binary(), sfumato.gdp, sfumato.paper, sfumato.Ledger; print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_users_process_keeps_its_own_precision():
    code = (
        "import numpy as np, numpyro, numpyro.distributions as dist, sfumato as sf, jax.numpy as jnp\n"
        "def m(y):\n"
        "    p = numpyro.sample('p', dist.Beta(1., 1.))\n"
        "    with numpyro.plate('n', y.shape[0]): numpyro.sample('y', dist.Bernoulli(probs=p), obs=y)\n"
        "sf.sample(m, {'y': np.arange(400) % 2}, domain={'y': sf.Binary()}, epsilon=2, delta=1e-5, force=True,"
        " max_iterations=20, chains=1, seed=0, kernel='guided')\n"
        "print(jnp.ones(1).dtype)"
    )
    # Defined in a string, the model has no source file; that must not matter.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "float32"
