"""A trainer says what it has finished: each step and each batch of an evaluation."""

from collections import Counter
from pathlib import Path
from typing import Any

from harness.config.model import Config
from harness.run import assemble, trainer
from tests.runs import changed


def test_steps_and_batches_of_evaluations_are_progress(config: Config, tmp_path: Path) -> None:
    """Law: once for the start, each step, and each batch of the three evaluations; steps run again count too."""
    found: list[Counter[int]] = []

    def train(*arguments: Any) -> None:
        counts = Counter[int]()
        found.append(counts)
        arguments[-1].advanced = lambda step: counts.update([step])  # the effects
        trainer.train(*arguments)

    (tmp_path / "trace.csv").write_text("hour,rank\n28,ps1\n")  # after step 8
    config = changed(config, trace__path=str(tmp_path / "trace.csv"), data__max_train_samples=64)
    config = changed(config, strategy__name="full", strategy__interval_samples=1000, eval__every_steps=12)
    config = changed(config, eval__batch_size=10, eval__max_samples=30, eval__curve_samples=20)
    assemble.run(config, tmp_path / "run", parts=assemble.Parts(train=train))
    expected = Counter({0: 1} | dict.fromkeys(range(1, 9), 2) | dict.fromkeys(range(9, 17), 1))
    assert found == [expected + Counter({12: 2, 16: 2 + 3})]
