"""Loads, when a fork server imports this module, the plugins of the process that started the server."""

import os

from harness.config.plugins import PRELOAD_VARIABLE, load

load(tuple(filter(None, os.environ.get(PRELOAD_VARIABLE, "").split("\n"))))
