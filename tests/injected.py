"""Which planned fault an event records."""

from typing import Any, TypeGuard

from harness.core.events import Injected


def is_loss(event: Any) -> TypeGuard[Injected]:
    """Whether a rank is lost by it."""
    return isinstance(event, Injected) and event.loss is not None


def is_fault(event: Any, *names: str) -> TypeGuard[Injected]:
    """Whether it is a fault of one of these names."""
    return isinstance(event, Injected) and event.fault in names


def is_failed_write(event: Any) -> TypeGuard[Injected]:
    """Whether a write failed."""
    return is_fault(event, "disk_full", "disk_error")
