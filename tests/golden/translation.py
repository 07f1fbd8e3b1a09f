"""Events in the form that they had when the golden records were made.

A change of an event's form is legal only if it can be written down here. The digests of ``records.json`` are those of
the first form, and stay.
"""

from typing import Any


def as_before(event: dict[str, Any]) -> dict[str, Any]:
    """``event`` (``Event.to_json``) without its machine part, in the first form."""
    return {key: value for key, value in event.items() if key != "machine"}
