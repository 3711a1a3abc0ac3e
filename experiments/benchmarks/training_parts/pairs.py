"""What every trainer of the training benchmark starts from, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from training_parts.trainers import CHECKED

from paradigms.data import Collection, load
from paradigms.encoder.backbone import load_backbone, load_tokenizer, offline_encoder, quiet
from paradigms.io.files import atomic_folder, atomic_text


def prepare(settings: Any, folder: Path) -> Path:
    """The folder `trainers.Job.work`: encoder, projection and pairs; settings of the benchmark."""
    needed = max(CHECKED, *(b * (settings.warmup + settings.steps(b)) for b in settings.batches))
    pairs = distinct_pairs(load(settings.collection), needed, settings.seed)
    source = offline_encoder() if settings.encoder == "offline" else settings.encoder
    backbone, tokenizer = load_backbone(source), load_tokenizer(source)
    torch.manual_seed(settings.seed)
    projection = torch.nn.init.orthogonal_(torch.empty(settings.dim, backbone.config.hidden_size))
    with atomic_folder(folder / "work", None) as work:
        with quiet():
            backbone.save_pretrained(work / "encoder")
        tokenizer.save_pretrained(work / "encoder")
        save_file({"projection": projection}, work / "projection.safetensors")
        with atomic_text(work / "pairs.jsonl") as file:
            for query, document in pairs:
                file.write(json.dumps({"query": query, "document": document}) + "\n")
    return folder / "work"


def distinct_pairs(collection: Collection, number: int, seed: int) -> list[tuple[str, str]]:
    """`number` training queries, each with a document relevant to it and to no other of them.

    So every other document of a batch is a negative, whether a trainer knows the judgements or not.
    """
    split = collection.splits.get("train")
    if split is None:
        raise SystemExit(f"{collection.name} has no training queries")
    queries = sorted(split.judgements)
    places = torch.randperm(len(queries), generator=torch.Generator().manual_seed(seed))
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    for query in (queries[n] for n in places.tolist()):
        relevant = {
            collection.corpus[collection.corpus.position(id)]
            for id, grade in sorted(split.judgements[query].items())
            if grade > 0
        }
        if relevant and not relevant & seen:
            seen |= relevant
            pairs.append((split.queries[query], min(relevant)))
        if len(pairs) == number:
            return pairs
    raise SystemExit(
        f"{collection.name} has {len(pairs)} training queries without a relevant document in common, and "
        f"{number} are needed: ask for smaller batches or fewer examples"
    )
