from tests.command import cli

__all__ = ["cli"]
