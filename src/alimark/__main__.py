"""Runs the command line: `python -m alimark`."""

from alimark.cli.main import main

if __name__ == "__main__":
    main()
