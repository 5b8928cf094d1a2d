"""Ask a node: plan, sample, look. The model is the owner's file, to the letter; the records never come here."""

import sys

from model import coin

import sfumato as sf


def main(url: str, token: str) -> None:
    """Draw from the posterior of the coin, through the owner's node."""
    owner = sf.connect(url, token=token)
    print(owner)
    print(sf.plan(coin, owner, epsilon=1.0, delta=1e-6, chains=2).table())
    run = sf.sample(coin, owner, epsilon=1.0, delta=1e-6, chains=2, max_iterations=1000)
    print(run.summary())
    print(run.privacy)


if __name__ == "__main__":
    main(*sys.argv[1:3])
