"""Checkpoints on the Hugging Face hub: there and back."""

from __future__ import annotations

from pathlib import Path

WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.metadata"]
PICKLED = ["*.bin", "*.pt"]


def download(name: str, pickled: bool) -> Path:
    """The repository's folder in the cache, downloaded where it is not there yet.

    FileNotFoundError for a path where no folder is, and for a repository that is not on the hub;
    ValueError for one without safetensors, unless pickled weights may be read.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    if Path(name).is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise FileNotFoundError(f"{name}: no such folder")
    try:
        folder = Path(snapshot_download(name, allow_patterns=WANTED + (PICKLED if pickled else [])))
    except (HFValidationError, RepositoryNotFoundError, LocalEntryNotFoundError) as error:
        raise FileNotFoundError(f"{name} is no folder, and not to be had from the hub: {error}") from error
    if not pickled and not any(folder.rglob("*.safetensors")):
        raise ValueError(
            f"{name} has no safetensors on the hub: where you trust who made it, ask for pickled weights "
            "with pickled=True"
        )
    return folder


def upload(folder: str | Path, name: str, private: bool = True) -> None:
    """The folder as the repository `name`, made where it is not there yet. The hub's own errors, as it has
    them, where there is no key or no right to write."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(name, private=private, exist_ok=True)
    api.upload_folder(repo_id=name, folder_path=str(folder))
