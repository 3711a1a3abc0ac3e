"""The Hugging Face hub without a network: its library reads the cache only, where uploads are written too."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

COMMIT = "0" * 40


def offline_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[[str], Path]:
    """Return the function name -> folder of a repository's files, with the branch main and the tag v1."""

    def repository(name: str) -> Path:
        folder = cache / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        for revision in ("main", "v1"):
            (folder / "refs" / revision).write_text(COMMIT)
        return folder / "snapshots" / COMMIT

    def upload_folder(_: object, *, repo_id: str, folder_path: str, **__: object) -> None:
        shutil.copytree(folder_path, repository(repo_id))

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload_folder)
    return repository
