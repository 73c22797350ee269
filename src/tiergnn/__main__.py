"""``python -m tiergnn`` and the ``tiergnn`` script: the command."""

import sys


def main() -> None:
    """The console script; little is imported before it."""
    try:
        from tiergnn.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while what it needs is imported; commands say more themselves
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
