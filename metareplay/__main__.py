"""`python -m metareplay`: the command line."""

from metareplay.cli.app import main

if __name__ == "__main__":
    main()
