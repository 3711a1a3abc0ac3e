"""Save models to the hub."""

import tempfile
from pathlib import Path

from paradigms.model import Trainable
from paradigms.saved import SETTINGS_AND_WEIGHTS
from paradigms.saving.weights import PICKLED


def push_to_hub(
    model: Trainable, name: str, layout: str = "paradigms", card: str | None = None, *, private: bool = True
) -> None:
    """Upload a model, as `save_pretrained` writes it, to the repository `name`, creating it if missing.

    Earlier settings and weights are removed from the repository but stay in the history. The hub's errors are
    passed on.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        model.save_pretrained(folder, layout, card)
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        old = [*SETTINGS_AND_WEIGHTS, *PICKLED]
        api.upload_folder(repo_id=name, folder_path=str(folder), delete_patterns=old)
