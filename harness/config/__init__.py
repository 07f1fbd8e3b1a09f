"""Validated configurations, read from YAML files and the command line."""
