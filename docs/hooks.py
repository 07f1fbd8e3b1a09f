"""Hook of mkdocs: pages outside of docs/, links as a reader of the repository follows them, and docstrings' roles.

A link in a page is relative to the page's file in the repository. On the site a link to a page leads to the page, and
any other file of the repository is named in code.
"""

import os
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "index.md", "LOG.md": "LOG.md", "failure_traces/README.md": "failure_traces.md"}
"""Pages of the site that are no files of docs/, by their paths in the repository."""

_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_ROLE = re.compile(r":[a-z]+:<code>~?")


def on_files(files, config):
    """Add the pages that are outside of docs/."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn the links of a page into links of the site."""
    name = page.file.src_uri
    source = next((path for path, page_name in OUTSIDE.items() if page_name == name), f"docs/{name}")
    if name.startswith("log/"):
        page.meta["search"] = {"boost": 0.5}  # documentation before findings

    def turned(link):
        text, target, anchor = link.groups(default="")
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        there = OUTSIDE.get(path, path.removeprefix("docs/"))
        if path in OUTSIDE or (path.startswith("docs/") and files.get_file_from_path(there)):
            return f"[{text}]({os.path.relpath(there, os.path.dirname(name) or '.')}{anchor})"
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: {target} does not exist")
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _LINK.sub(turned, markdown)


def on_page_content(html, page, config, files):
    """Leave out the roles of names in docstrings, such as ``:func:``."""
    return _ROLE.sub("<code>", html)
