"""Laws of failures, as a configuration gives them."""

from typing import Any

from harness.config.laws import Law
from harness.config.model import TraceConfig


def law_of(**keys: Any) -> Law:
    """The law ``trace: {law: keys}``. Raises pydantic's ValidationError."""
    law = TraceConfig.model_validate({"law": keys}).law
    assert law is not None
    return law
