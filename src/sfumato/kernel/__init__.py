"""Pure steps: the penalty decision and the walks it is used with."""

from sfumato.kernel.langevin import Langevin
from sfumato.kernel.penalty import Draw, State, accepts, log_alpha
from sfumato.kernel.reference import ReferenceLangevin
from sfumato.kernel.stream import PublicStream
from sfumato.kernel.walks import Componentwise, Guided, Kernel, RandomWalk, Streams

__all__ = [
    "Componentwise",
    "Draw",
    "Guided",
    "Kernel",
    "Langevin",
    "PublicStream",
    "RandomWalk",
    "ReferenceLangevin",
    "State",
    "Streams",
    "accepts",
    "log_alpha",
]
