"""Builds the documentation site: `make docs`. Nothing here is part of the package."""
