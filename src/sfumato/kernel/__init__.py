"""Pure steps: the penalty decision, the kernels it is used with, and the compiled loop."""

from sfumato.kernel.base import Kernel, Streams
from sfumato.kernel.free import FreeMoves
from sfumato.kernel.kinds import AUTO, KINDS, Kind, OnNormal, asks_first, kinds, register
from sfumato.kernel.langevin import Langevin
from sfumato.kernel.penalty import Draw, Heard, Move, State, Weighed, accepts, decide, log_alpha, propose
from sfumato.kernel.reference import ReferenceLangevin
from sfumato.kernel.stream import PublicStream
from sfumato.kernel.walks import Componentwise, Guided, RandomWalk

__all__ = [
    "AUTO",
    "KINDS",
    "Componentwise",
    "Draw",
    "FreeMoves",
    "Guided",
    "Heard",
    "Kernel",
    "Kind",
    "Langevin",
    "Move",
    "OnNormal",
    "PublicStream",
    "RandomWalk",
    "ReferenceLangevin",
    "State",
    "Streams",
    "Weighed",
    "accepts",
    "asks_first",
    "decide",
    "kinds",
    "log_alpha",
    "propose",
    "register",
]
