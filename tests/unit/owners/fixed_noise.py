"""A noise source with a fixed stream, for tests that compare runs draw for draw."""

import numpy as np


class Fixed:
    """Rounded normals from a seeded stream: every source of one scale and seed draws the same numbers in order."""

    def __init__(self, scale: float, seed: int = 7) -> None:
        self.scale = scale
        self._rng = np.random.default_rng(seed)

    def draw(self, size: int) -> np.ndarray:
        return np.rint(self.scale * self._rng.standard_normal(size)).astype(np.int64)


def split(parts: int, part: int, total: float, seed: int = 7):
    """Sources of one owner among `parts`: their draws add up to those of `Fixed(total)`, number for number."""

    class Part:
        def __init__(self, scale: float) -> None:
            self.scale = scale
            self._whole = Fixed(scale * parts**0.5, seed)
            self._rng = np.random.default_rng(seed + 1)

        def draw(self, size: int) -> np.ndarray:
            whole = self._whole.draw(size)
            pieces = np.rint(self.scale * self._rng.standard_normal((size, parts - 1))).astype(np.int64)
            pieces = np.concatenate([pieces, (whole - pieces.sum(axis=1))[:, None]], axis=1)
            return np.ascontiguousarray(pieces[:, part])

    return Part
