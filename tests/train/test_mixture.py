"""Training on several collections: each batch from one, with its prompts and its loss."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from paradigms.data.collection import Joined
from paradigms.train.contrastive import Contrastive
from paradigms.train.examples import Example
from paradigms.train.loop import Paused, TrainingSettings, train
from paradigms.train.mixture import Mixture, Part
from paradigms.train.order import mixed_batches
from paradigms.train.rows import examples_from_rows
from tests.experiments.scripts import run, training
from tests.near import assert_same
from tests.tiny import built
from tests.train.test_loop import build, history
from tests.train.test_stored import pairs


def test_batches_are_of_one_collection_by_shares_and_resume():
    def batches(start: int = 0, rank: int = 0, world: int = 1, shares=(1.0, 3.0, 0.0)) -> list[list[int]]:
        size = 6 // world
        return list(
            mixed_batches([12, 32, 2], shares, size, 400, start=start, rank=rank, world=world, seed=5)
        )

    all_batches = batches()
    assert batches(start=37) == all_batches[37:]
    halves = zip(batches(rank=0, world=2), batches(rank=1, world=2), strict=True)
    assert [first + second for first, second in halves] == all_batches
    firsts = [batch for batch in all_batches if set(batch) <= set(range(12))]
    seconds = [batch for batch in all_batches if set(batch) <= set(range(12, 44))]
    assert len(firsts) + len(seconds) == 400
    assert len(seconds) == pytest.approx(300, abs=3 * np.sqrt(400 * 0.75 * 0.25))
    assert all(sorted(a + b) == list(range(12)) for a, b in zip(firsts[::2], firsts[1::2], strict=False))
    with pytest.raises(ValueError, match="is larger than the 2 training examples"):
        batches(shares=(1.0, 1.0, 1.0))


def mixture(backbone: Path) -> Mixture:
    model = build(backbone, "dpr")
    first = Contrastive(model, *examples_from_rows(pairs(20)), ("find ", "text "))
    second = Contrastive(model, *examples_from_rows(pairs(24, negatives=2, seed=1)))
    return Mixture([Part(first, 1.0), Part(second, 2.0, {"temperature": 0.5, "in_batch": False})])


@torch.no_grad()
def test_parts_may_be_read_on_demand():
    """By positions from 0 on alone, and in order."""

    class Numbers(Sequence[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> int:
            if not 0 <= index < 3:
                raise IndexError(index)
            return 10 + index

    joined = Joined([Numbers(), Numbers()])
    assert [joined[n] for n in range(-6, 6)] == [*joined] * 2 == [10, 11, 12] * 4


def test_a_part_has_its_prompts_and_its_loss(tiny_bert: Path):
    mixed = mixture(tiny_bert).configure(TrainingSettings(temperature=0.1))
    model = mixed.model.double().eval()
    corpus, examples = examples_from_rows(
        [{"query": f"find {row['query']}", "positive": f"text {row['positive']}"} for row in pairs(20)]
    )
    alone = Contrastive(model, corpus, examples).configure(TrainingSettings(temperature=0.1))
    chosen = [mixed.examples[n] for n in (3, 11, 19)]
    expected = alone.loss(model, alone.collate([examples[n] for n in (3, 11, 19)]))
    assert_same(mixed.loss(model, mixed.collate(chosen)), expected)
    other = replace(TrainingSettings(), temperature=0.5, in_batch=False)
    alone = Contrastive(model, *examples_from_rows(pairs(24, negatives=2, seed=1))).configure(other)
    expected = alone.loss(model, alone.collate([alone.examples[n] for n in (0, 23)]))
    assert_same(mixed.loss(model, mixed.collate([mixed.examples[20], mixed.examples[-1]])), expected)


def test_a_mixture_resumes_bit_for_bit_and_refuses_other_shares(tiny_bert: Path, tmp_path: Path):
    settings = TrainingSettings(steps=5, batch_size=4, save_every=1, log_every=1, learning_rate=1e-3)

    def fit(name: str, mixed: Mixture, minutes: float = 0.0) -> None:
        limited = replace(settings, minutes=minutes)
        accelerator = Accelerator(cpu=True)
        train(mixed.model, mixed, limited, tmp_path / name, accelerator=accelerator, progress=False)

    fit("whole", mixture(tiny_bert))
    with pytest.raises(Paused):
        fit("parts", mixture(tiny_bert), 1e-9)
    changed = mixture(tiny_bert)
    with pytest.raises(ValueError, match="was trained with other settings"):
        fit("parts", Mixture([changed.parts[0], replace(changed.parts[1], share=3.0)]))
    fit("parts", mixture(tiny_bert))
    assert history(tmp_path / "parts") == history(tmp_path / "whole")


def test_the_script_trains_on_several_collections(words: Path, tiny_bert: Path, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs(20, negatives=1)))
    sources = [
        {"pairs": str(tmp_path / "rows.jsonl"), "query_prompt": "find ", "loss": {"distil": "kl"}},
        {"collection": str(words), "negatives": 2, "share": 3, "loss": {"temperature": 0.1}},
    ]
    flags = training(words, tiny_bert, tmp_path / "out", negatives=0)
    run("train", **flags, sources=json.dumps(sources))
    losses = [line["loss"] for line in history(tmp_path / "out" / "training") if "loss" in line]
    assert losses
    assert (tmp_path / "out" / "checkpoint" / "README.md").read_text().count("rows.jsonl") == 1
    with pytest.raises(SystemExit, match="source 0: give either pairs or a collection"):
        run("train", **flags, sources=json.dumps([{"pairs": "a", "collection": "b"}]))
    with pytest.raises(SystemExit, match="sources cannot be combined with negatives"):
        run("train", **flags | {"negatives": 1}, sources=json.dumps(sources))


def test_examples_texts_and_prompts_bind_a_run(tiny_bert: Path):
    model = built("colbert", tiny_bert)
    examples = [Example("a bird", 0, (1,), (0,)), Example("the sea", 1, (0,), (1,))]
    texts = ["a bird over the sea", "fire and wood"]

    def digest(*arguments: Any) -> str:
        return Contrastive(model, *arguments).digest()

    same = digest(texts, examples)
    assert digest(list(texts), list(examples)) == same
    assert digest(texts, examples, ("query ", "")) != same
    assert digest([texts[0], "fire and water"], examples) != same
    assert digest(texts, examples[:1]) != same


def test_parts_of_two_models_are_refused(tiny_bert: Path):
    parts = [Part(Contrastive(built("colbert", tiny_bert), ["a"], [Example("a", 0, (), (0,))])) for _ in "ab"]
    with pytest.raises(ValueError, match="train one model"):
        Mixture(parts)
