"""The command line: arguments, commands, and their output.

``commands`` dispatches to the modules ``*_commands``; ``commands.toml`` has the help. It parses, calls, and prints: no
result depends on it.
"""
