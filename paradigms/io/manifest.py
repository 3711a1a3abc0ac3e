"""Write and check manifest.json, which records the size and SHA-256 of every other file in a folder."""

from pathlib import Path

from paradigms.io.checks import read_json
from paradigms.io.files import sha256, write_json

MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Write manifest.json for the files in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    entries = {str(file.relative_to(folder)): [file.stat().st_size, sha256(file)] for file in files}
    write_json(folder / MANIFEST, entries)


def damage(folder: Path) -> str | None:
    """Describe how a folder differs from its manifest.json; return None if every file is intact."""
    try:
        for name, (size, digest) in read_json(folder / MANIFEST).items():
            file = folder / name
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes, not the {size} that were written"
            if sha256(file) != digest:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{MANIFEST} or a file that it names cannot be read ({error})"
    return None
