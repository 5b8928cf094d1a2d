"""A table on a cluster that was there before, by its address; a process of its own, because one can use one cluster at a time."""

import sys

import numpy as np

import sfumato as sf
from sfumato.vault import records
from sfumato.vault.engine import LocalEngine
from sfumato.vault.queries.ratio import RatioSum
from sfumato.vault.ray_engine import RayEngine
from sfumato.vault.ray_shards import RayShards
from unit.owners.test_rounds import DOMAIN, LOGISTIC, TABLE


def main(pattern: str, address: str) -> None:
    theta = np.array([[0.1, -0.2, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0]])
    ratio = RatioSum(theta, theta + 0.05, np.full(2, -(2**40)), np.full(2, 2**40), 2.0**-36)
    shards = RayShards(sf.RayTable(pattern, workers=2, address=address), DOMAIN)
    here = LocalEngine(records.load(TABLE, DOMAIN), LOGISTIC)
    assert RayEngine(shards, LOGISTIC).sum(ratio).tolist() == here.sum(ratio).tolist()
    shards.close()
    print("the same whole numbers")


if __name__ == "__main__":
    main(*sys.argv[1:])
