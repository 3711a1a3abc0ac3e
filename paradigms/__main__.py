"""Entry point for `python -m paradigms`; see `paradigms.cli.arguments`."""

import os
import sys

if __name__ == "__main__" and sys.path[:1] == [os.getcwd()] and not sys.flags.safe_path:
    # Python puts the current folder first, and a downloaded one may hold a numpy.py. The package's own
    # folder, which may be the same, comes last.
    del sys.path[0]
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from paradigms.cli.arguments import main

if __name__ == "__main__":
    main()
