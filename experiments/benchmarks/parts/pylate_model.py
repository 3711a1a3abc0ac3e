"""Worker that writes a model with PyLate's defaults and a random projection, in PyLate's environment."""

from typing import Any

import torch
from pylate import models


def measure(job: dict[str, Any]) -> None:
    """Write a model over job["backbone"] to job["folder"]."""
    torch.manual_seed(0)
    models.ColBERT(job["backbone"], embedding_size=128).save_pretrained(job["folder"])
