"""The command line."""

from metareplay.cli.app import main

__all__ = ["main"]
