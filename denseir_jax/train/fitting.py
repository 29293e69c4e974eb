"""How many micro-batches a step needs to fit a memory budget: compile, look, raise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from denseir_jax.core.errors import ConfigError


@dataclass(frozen=True)
class Fitted:
    """A compiled step, in how many parts it takes its batch, and its temporary memory in bytes a device (0: unknown)."""

    step: Any
    micro_batches: int
    temporary: int


def fit(compiled: Callable[[int], Any], at_least: int, rows: int, budget: float) -> Fitted:
    """The step with the fewest micro-batches, from `at_least` on, whose temporary memory is within `budget`.

    Every number that divides `rows` is a candidate; those that the last measurement rules out are passed over, so that a few
    compilations are the rule.

    Args:
        compiled: number of micro-batches -> compiled step (``jax.stages.Compiled``). rows: of the batch on a device.
        budget: bytes a device; 0: none.
    Raises:
        ConfigError: even rows one by one do not fit, with both numbers; or the back end does not tell what a step needs.
    """
    candidates = [n for n in range(at_least, rows + 1) if rows % n == 0]
    wanted = at_least
    for n in candidates:
        if n < wanted and n != candidates[-1]:
            continue
        step = compiled(n)
        memory = step.memory_analysis()
        if memory is None and budget:
            raise ConfigError("memory_budget: this back end does not tell how much memory a step needs; set micro_batches instead")
        temporary = 0 if memory is None else int(memory.temp_size_in_bytes)
        if not budget or temporary <= budget:
            return Fitted(step, n, temporary)
        wanted = max(n + 1, int(n * temporary / budget))  # part of it does not shrink, so this is never too many
    raise ConfigError(
        f"memory_budget={budget / 2**30:g} GiB: the step needs {temporary / 2**20:,.1f} MiB of temporary memory a device even with its "
        f"{rows} rows one by one; raise the budget, or take fewer layers, remat=true, shorter texts or a smaller vocabulary"
    )
