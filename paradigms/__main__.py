"""python -m paradigms: see `paradigms.terminal.arguments`."""

from paradigms.terminal.arguments import main

if __name__ == "__main__":
    main()
