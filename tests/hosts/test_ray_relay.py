"""What of launcher ``ray`` needs no Ray: the key's cover, and what a machine without the package is told."""

import importlib.util
import secrets
from pathlib import Path
from typing import Any

import pytest

from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError
from harness.core.host_map import HostMap
from harness.hosts.ray_launcher import RayLauncher
from harness.hosts.ray_relay import Exchange


def test_a_key_is_uncovered_by_the_other_side_alone() -> None:
    """Law: both sides share a secret that neither sends; another side has another."""
    key, ours, theirs = secrets.token_bytes(32), Exchange(), Exchange()
    covered = ours.cover(key, theirs.public)
    assert key not in (covered, Exchange().cover(covered, ours.public))
    assert theirs.cover(covered, ours.public) == key


@pytest.mark.parametrize("public", [0, 1, -1])
def test_a_part_that_fixes_the_secret_is_refused(public: int) -> None:
    """Law: numbers whose powers are known to all are no part of an exchange."""
    with pytest.raises(ValueError, match="not a part of an exchange"):
        Exchange().cover(bytes(32), public)


def test_without_ray_one_line_says_what_to_install(tmp_path: Path) -> None:
    """Law: before anything is started."""
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("ray is installed")
    given: dict[str, Any] = {"launcher": "ray", "network": "open"}
    with pytest.raises(ConfigError) as caught:
        RayLauncher(ClusterConfig(**given), HostMap(2, 0, {}), tmp_path)
    words = "which is not installed: pip install -r requirements-ray.txt"
    assert str(caught.value) == f"cluster.launcher: ray needs the package ray, {words}"
