"""python -m paradigms: see `paradigms.cli.arguments`."""

from paradigms.cli.arguments import main

if __name__ == "__main__":
    main()
