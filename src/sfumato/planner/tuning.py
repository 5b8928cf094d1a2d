"""From a study and a task to kernels, each with its tuning, and from a plan to its kernel.

What a step is worth comes with the kernel (`kernel.kinds`). What it costs depends on what it asks, so there is a module for each
second query; each has `tune` and `build`.
"""

from dataclasses import fields, replace
from typing import Any, NamedTuple

import jax

from sfumato.errors import InvalidInput, Unsupported
from sfumato.kernel import AUTO, Kind
from sfumato.planner import hierarchy, langevin, reference, walks
from sfumato.planner.choice import Choice, Task
from sfumato.planner.plan import Plan
from sfumato.study.target import Study

BY_SECOND: dict[str, Any] = {"ratio": walks, "linear": langevin, "remainder": reference}


class Chosen(NamedTuple):
    """Kernels that came into question, the best forecast first; and those that did not, with the reason."""

    choices: list[Choice]
    missing: dict[str, str]


def choose(task: Task, name: str) -> Chosen:
    """Tune every kernel that comes into question; where the planner has the choice, one that cannot be had is passed over."""
    found, missing = task.study.kernels(name)
    choices = []
    for kind in found:
        try:
            choices.append(tune(kind, task))
        except Unsupported as error:
            if name != AUTO:
                raise
            missing[kind.name] = str(error)
    if not choices:
        why = "; ".join(missing.values()) or "the study does not answer what it asks"
        raise Unsupported(f"kernel={name!r} cannot be had here: {why}. Use kernel='auto'.")
    return Chosen(sorted(choices, key=lambda choice: -choice.ess), missing)


def tune(kind: type[Kind], task: Task) -> Choice:
    """Best tuning of one kernel."""
    with jax.enable_x64(True):
        choice: Choice = BY_SECOND[kind.second].tune(kind, task)
    return choice


def build_kernel(study: Study, plan: Plan) -> Kind:
    """The kernel of a plan, ready to run."""
    found, _ = study.kernels(plan.kernel)
    if not found:
        raise InvalidInput(
            f"a plan is run with the kernel that it was made for, and {plan.kernel!r} is not known here, or not for this study; "
            "import the file that registers it."
        )
    with jax.enable_x64(True):
        kernel: Kind = BY_SECOND[found[0].second].build(found[0], study, plan)
        moves = hierarchy.free_moves(study, plan.belief)
    named = {part.name for part in fields(kernel)}  # type: ignore[arg-type]
    return kernel if moves is None or "free" not in named else replace(kernel, free=moves)  # type: ignore[type-var]
