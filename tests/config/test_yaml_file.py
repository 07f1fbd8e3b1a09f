"""What the YAML writer writes, the reader reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.yaml_file import Document, to_yaml

_ANY = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\t?:-#,[]{}\"'"), max_size=40)


@pytest.mark.parametrize(
    "text", ["a   word", "?", ":  x", "a\x85b", "\u2028", " ", "~", "1e3", "1" * 5000, "- a", "a: b", "#"]
)
def test_a_text_at_the_end_of_a_long_line_is_read_as_it_was_written(text: str) -> None:
    """Law: wherever the line breaks. Folders may have names with several spaces."""
    for length in range(80, 120):
        padding = "x" * length
        value = {"group": {"padding": padding, "path": text}, "list": [padding, text, 1], "path": text}
        assert Document(to_yaml(value).encode(), "written").value == value


@settings(max_examples=10 * settings().max_examples)
@given(_ANY, st.integers(0, 120))
def test_any_text_is_read_as_it_was_written(text: str, length: int) -> None:
    """Law: as a value, in a list, as a key."""
    padding = "x" * length
    value = {"group": {"padding": padding, "value": text}, "list": [padding, text], "k" + text: text}
    assert Document(to_yaml(value).encode(), "written").value == value
