"""``python -m tiergnn`` is the ``tiergnn`` command."""

from tiergnn.cli.main import main

if __name__ == "__main__":
    main()
