"""What a console shows of a table or a story."""

import io

from rich.console import Console, RenderableType


def shown(result: RenderableType) -> str:
    """As text, on a console so wide that no line is broken."""
    console = Console(width=500, highlight=False, file=io.StringIO(), record=True)
    console.print(result)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"
