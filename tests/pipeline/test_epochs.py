"""Training told in epochs: as many steps as they take, known once the rows are counted, the same after a stop."""

import pytest
from test_finetune import negatives, settings  # noqa: F401  # the fixture

from denseir_jax.core import signals
from denseir_jax.core.artifacts import finished_run
from denseir_jax.core.command import execute
from denseir_jax.core.errors import Stopped
from denseir_jax.core.events import read
from denseir_jax.pipeline.stages.finetune import stage
from denseir_jax.pipeline.stages.training import steps_of
from denseir_jax.train import loop

pytestmark = pytest.mark.usefixtures("module_on_one_device")


def test_steps_are_counted_from_the_rows(beir_tokens, beir, negatives) -> None:  # noqa: F811
    config = settings(beir, beir_tokens, negatives, steps=0, epochs=3.0, batch_size=64)
    assert steps_of(config, 500_000) == 23_438 and steps_of(config, 1) == 1, "every row is seen: the last step is begun"
    assert steps_of(settings(beir, beir_tokens, negatives, steps=7), 500_000) == 7
    for steps, epochs in ((0, 0.0), (5, 1.0), (-1, 1.0), (0, -1.0)):
        with pytest.raises(ValueError, match=rf"steps={steps} and epochs={epochs:g}: one of them must be above 0, the other 0"):
            settings(beir, beir_tokens, negatives, steps=steps, epochs=epochs)


def test_a_stopped_run_goes_on_to_the_same_parameters(beir, beir_tokens, negatives, tmp_path, capsys, monkeypatch) -> None:  # noqa: F811
    config = settings(beir, beir_tokens, negatives, steps=0, epochs=0.25, batch_size=16)  # of 240 queries
    whole = execute(stage, config, tmp_path / "whole")
    assert whole["step"] == 4 and "0.25 epochs of 240 rows are 4 steps of 16" in capsys.readouterr().err
    assert finished_run(tmp_path / "whole")["rows"] == 240
    assert [line["lr"] for line in read(tmp_path / "whole" / "events.jsonl") if line["kind"] == "train"][-1] < config.optimizer.lr / 2

    monkeypatch.setattr(signals, "_received", [])
    told = loop.Loop._told_to_stop
    monkeypatch.setattr(loop.Loop, "_told_to_stop", lambda self, number: number == 2 or told(self, number))
    with pytest.raises(Stopped):
        execute(stage, config, tmp_path / "stopped")
    monkeypatch.setattr(loop.Loop, "_told_to_stop", told)
    assert execute(stage, config, tmp_path / "stopped")["params_sha256"] == whole["params_sha256"]

    capsys.readouterr()
    assert execute(stage, config, tmp_path / "stopped")["step"] == 4 and "already finished" in capsys.readouterr().err
    longer = settings(beir, beir_tokens, negatives, steps=0, epochs=0.3, batch_size=16)
    assert execute(stage, longer, tmp_path / "stopped")["step"] == 5 and "goes on from step 4" in capsys.readouterr().err
    assert execute(stage, config, tmp_path / "stopped")["step"] == 5 and "more than the 4 asked for" in capsys.readouterr().err
