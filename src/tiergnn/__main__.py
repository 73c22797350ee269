"""``python -m tiergnn`` is the ``tiergnn`` command."""

import sys

if __name__ == "__main__":
    try:
        from tiergnn.cli.main import main

        main()
    except KeyboardInterrupt:  # while what it needs is imported; commands say more themselves
        print("stopped", file=sys.stderr)
        sys.exit(130)
