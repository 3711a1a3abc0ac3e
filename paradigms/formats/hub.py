"""Checkpoints of the Hugging Face hub, in its cache on this machine."""

from contextlib import suppress
from pathlib import Path, PurePosixPath

from paradigms.formats.weights import pickles, refuse_pickles
from paradigms.model import PICKLED, SETTINGS_AND_WEIGHTS


def download(name: str, pickled: bool) -> Path:
    """The repository's folder in the cache, downloaded where it is not there yet.

    FileNotFoundError for a path where no folder is, and for a repository that is not on the hub;
    ValueError for one some of whose weights are pickled alone, unless these may be read.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    if Path(name).is_absolute() or name.startswith(".") or name.count("/") > 1:
        there = next(folder for folder in Path(name).absolute().parents if folder.is_dir())
        held = sorted(entry.name for entry in there.iterdir() if entry.is_dir())
        raise FileNotFoundError(f"{name}: no such folder; {there} has {', '.join(held[:12]) or 'none'}")
    found = {} if pickled else pickles(listed(name))
    if found:
        refuse_pickles(name, found)
    wanted = [*SETTINGS_AND_WEIGHTS, *(PICKLED if pickled else ())]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HFValidationError, RepositoryNotFoundError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{name} is no folder, and not to be had from the hub: {error}") from error


def listed(name: str) -> list[PurePosixPath]:
    """The files of a repository; none where the hub does not answer, which the download then tells."""
    from huggingface_hub import HfApi

    with suppress(Exception):  # of what kind depends on the version of its HTTP library
        return [PurePosixPath(file.rfilename) for file in HfApi().model_info(name).siblings or []]
    return []
