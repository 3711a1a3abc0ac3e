"""python -m paradigms: see `paradigms.terminal.commands`."""

from paradigms.terminal.commands import main

if __name__ == "__main__":
    main()
