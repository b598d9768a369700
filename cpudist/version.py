"""The one place where the version number stands."""

__version__ = "0.2.0"
