"""What the checks of gpu.py share: a device, a folder, and trainings in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import training
from parts.measuring import new_process
from studies.pages import ROOT
from transformers import BertConfig, BertModel

from paradigms.data import load_collection
from paradigms.encoder.backbone import load_tokenizer, packaged
from paradigms.scoring import in_batch
from paradigms.train.checkpoints import HISTORY

# Sizes of BERTs; {}: transformers' default, BERT-base.
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Needs(Exception):
    """Raised by a check that this machine cannot run; the message says what it needs."""


@dataclass(frozen=True)
class Place:
    """What the checks share: a device and a temporary folder."""

    device: torch.device
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def need_gpu(self, package: str = "") -> None:
        """Raise `Needs` without a GPU or an optional package."""
        if not self.on_gpu:
            raise Needs("needs a GPU")
        if package and find_spec(package) is None:
            raise Needs(f"needs {package}")

    def backbone(self, changes: dict[str, Any]) -> str:
        """Write a BERT with random weights, base-sized on a GPU; return its folder."""
        torch.manual_seed(0)
        tokenizer = load_tokenizer(packaged("offline"))
        sizes: dict[str, Any] = {} if self.on_gpu else SMALL
        folder = self.folder / "backbone"
        BertModel(BertConfig(vocab_size=len(tokenizer), **sizes | changes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    def settings(self) -> training.Settings:
        """Make settings of the training benchmark."""
        batch, length, steps = (32, 180, 8) if self.on_gpu else (8, 32, 2)
        return training.Settings(backbone=self.backbone({}), batches=[batch], length=length, steps=steps)

    def train(
        self, precision: str = "no", system: str = training.OURS, kernels: bool = True, **changes: Any
    ) -> training.Round:
        """Train a ColBERT in a new process. changes: fields of `TrainingSettings`."""
        settings = self.settings()
        case = training.Case("colbert", precision, settings.batches[0], 0, system)
        with new_process() as process:
            process.submit(use_kernels, kernels).result()
            return process.submit(training.measure, settings, case, pairs(settings), "", changes).result()

    def script(self, name: str, config: str = "", *flags: str) -> subprocess.Popen[str]:
        """Start train.py without dropout, by accelerate with one process if there is a configuration."""
        launcher = (
            f"-m accelerate.commands.launch --config_file experiments/configs/{config} --num_processes 1"
        )
        command = [sys.executable, *(f"{launcher} --main_process_port 0".split() if config else ())]
        command += ["experiments/train.py", "--documents", "200", "--steps", "40", "--save-every", "4"]
        command += ["--batch-size", "8", "--dev-queries", "0", "--precision", "no", "--tracker", "none"]
        command += ["--backbone", self.backbone(SMALL | WITHOUT_DROPOUT), "--output", str(self.folder / name)]
        command += flags
        environment = os.environ | ({} if self.on_gpu else {"ACCELERATE_USE_CPU": "true"})
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=pipe, stderr=pipe)

    def losses(self, name: str, config: str = "", *flags: str) -> list[float]:
        """Run train.py to its end, and return its losses."""
        process = self.script(name, config, *flags)
        _, errors = process.communicate()
        assert process.returncode == 0, f"train.py ended with status {process.returncode}: {errors[-500:]}"
        history = (self.folder / name / "training" / HISTORY).read_text(encoding="utf-8")
        return [json.loads(line)["loss"] for line in history.splitlines()]


def pairs(settings: training.Settings) -> training.Pairs:
    needed = settings.batches[0] * (training.WARMUP + settings.steps)
    return training.distinct_pairs(load_collection(settings.collection), needed, settings.seed)


def use_kernels(use: bool) -> None:
    in_batch.FUSED = {"cuda"} if use else set()
