"""The settings that the agent of a host gets at its start. They are not on its command line, which others can read."""

import json
from dataclasses import asdict, dataclass

from harness.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings of the agent of a host, sent as one line of JSON on its standard input.

    Attributes:
        host: its name in ``cluster.hosts``.
        address, port, authkey: where the supervisor listens for agents, and the key of the run, in hexadecimal.
        folder, path, plugins: working folder, ``sys.path`` and plugins of the supervisor.
        dead_after_s: as ``cluster.dead_after_s``.
    """

    host: str
    address: str
    port: int
    authkey: str
    folder: str
    path: list[str]
    plugins: list[str]
    dead_after_s: float

    def to_line(self) -> bytes:
        """The inverse of :meth:`of_line`."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: str) -> "AgentSettings":
        """The settings in a line. Raises ConfigError."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                "standard input: expected the settings of an agent in one line; cluster.start_agent starts this program"
            ) from error
