"""What is due at boundaries, and strategies whose next save depends on the last one."""

from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core import strategies
from harness.core.errors import RunFailed
from harness.core.events import Saved
from harness.core.plans import Progress, SavePlan
from harness.core.strategies import Full
from tests.runs import changed, facts, run


class Stretching(Full):
    """Saves when the samples since the last save are half of those before it, at least 100: known one save ahead."""

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """At the first boundary at or after the due sample."""
        due = self._due(progress)
        return SavePlan(kind="full") if due <= progress.samples < progress.total_samples else None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """The due sample; nothing is known of later saves."""
        due = self._due(progress)
        return due if due > max(progress.samples, after or 0) else None

    def _due(self, progress: Progress) -> int:
        assert progress.saved_samples is not None
        return progress.saved_samples + max(100, progress.saved_samples // 2)


class Unannounced(Stretching):
    """Saves as ``Stretching``, and forecasts no save at all."""

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """Never."""
        return None


def test_a_forecast_may_be_revised_at_every_save(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saves that follow from the last one fall alike with and without the cache, under ten failures, to the bit."""
    monkeypatch.setitem(strategies.STRATEGIES, "full", Stretching)
    config = changed(config, strategy__name="full", eval__every_steps=45)
    _, uncached = run(config, tmp_path / "uncached")
    saves = [event.samples for event in uncached if isinstance(event, Saved) and event.charged]
    assert sorted({*saves}) == [100, 200, 300, 452, 680, 1020]
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    for lookahead in (2, 400):
        looking_ahead = changed(config, cache__mode="lookahead", cache__lookahead=lookahead)
        cached, events = run(looking_ahead, tmp_path / f"cached-{lookahead}")
        assert facts(events) == facts(uncached), lookahead
        assert cached.digests == reference.digests


def test_a_save_that_was_not_announced_fails_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests may have run ahead of it: the run ends with one line that names the step."""
    monkeypatch.setitem(strategies.STRATEGIES, "full", Unannounced)
    with pytest.raises(RunFailed, match=r"step 25: the strategy plans a save at 100 samples; expected no save earlier"):
        run(changed(config, strategy__name="full", trace__path=None), tmp_path / "run")
