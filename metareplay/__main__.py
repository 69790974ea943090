"""`python -m metareplay`: the command line."""

from metareplay.cli import main

if __name__ == "__main__":
    main()
