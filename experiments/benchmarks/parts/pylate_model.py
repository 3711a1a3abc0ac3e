"""Write a ColBERT model with PyLate's defaults and a random projection: python -m parts.pylate_model JOB.

JOB is a JSON object with `backbone` and `folder`. The module runs in PyLate's environment.
"""

import json
import sys

import torch
from pylate import models

job = json.loads(sys.argv[1])
torch.manual_seed(0)
models.ColBERT(job["backbone"], embedding_size=128).save_pretrained(job["folder"])
