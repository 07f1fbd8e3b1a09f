"""From YAML files and the command line to validated configurations."""
