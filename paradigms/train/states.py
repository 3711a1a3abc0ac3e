"""Store the states of frozen layers in a folder during a run, and delete them when it ends.

`encoder.frozen` computes, writes and reads the states; this module decides for which texts and how long.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator

from paradigms.encoder.batches import Batch
from paradigms.encoder.frozen import WRITTEN, LowerStates
from paradigms.encoder.precision import autocast
from paradigms.encoder.settings import SIDES, Side
from paradigms.encoder.towers import TwoTowers
from paradigms.io.files import check_locks, remove_folder
from paradigms.train.loop import Paused, TrainingSettings, freeze
from paradigms.train.order import step_batches
from paradigms.train.parallel import by_main, locked_by_main
from paradigms.trainable import Trainable

Used = TypeVar("Used")

STATES = "states"  # folder for states of frozen layers during a run


@contextmanager
def deleted_after(folder: Path, accelerator: Accelerator) -> Iterator[Path]:
    """Create and lock a folder for states of frozen layers, and delete it when the run ends or fails.

    States left there by a killed or `Paused` run are reused. Raises BlockingIOError while another run uses
    the folder.
    """
    with locked_by_main(folder, accelerator):
        paused = False
        try:
            yield folder
            accelerator.wait_for_everyone()
        except Paused:
            paused = True
            raise
        finally:
            with suppress(BlockingIOError):  # the folder was deleted and may belong to another run
                check_locks(folder / "states")
                if accelerator.is_main_process and not paused:
                    try:
                        remove_folder(folder, WRITTEN)
                    except FileExistsError as error:
                        warnings.warn(f"{folder} is not removed: {error}", RuntimeWarning, stacklevel=2)


def keep_states(
    paradigm: Trainable,
    trained_layers: int,
    folder: Path,
    texts: Mapping[Side, Sequence[str]],
    accelerator: Accelerator,
    untrained: bool = False,
) -> None:
    """Freeze the paradigm, and store its frozen layers' states for each side's texts in `folder`.

    States that other paradigms or runs stored there are reused. Every process calls this and sees the same
    folder. untrained: also store the last layer's output, for a paradigm that is not trained afterwards.
    """
    freeze(paradigm, trained_layers)
    encoder: Any = paradigm.encoder
    for side in SIDES:
        tower = encoder.of(side) if isinstance(encoder, TwoTowers) else encoder
        assert tower.split is not None
        side_texts = texts.get(side, ())
        tokenize = partial(tower.tokenize, side=side)
        with autocast(accelerator.device, accelerator.mixed_precision):
            store = tower.keep_states(folder)
            add_states(store, side_texts, tokenize, tower.split.compute, accelerator)
            tower.split.outputs = None
            if untrained and not tower.split.has_head:  # logits of the whole vocabulary would be large
                store = tower.keep_states(folder, outputs=True)
                add_states(store, side_texts, tokenize, tower.split.untrained, accelerator)


def add_states(
    store: LowerStates,
    texts: Sequence[str],
    tokenize: Callable[[Sequence[str]], Batch],
    compute: Callable[[Batch], torch.Tensor],
    accelerator: Accelerator,
) -> None:
    """Store each process's share of the texts' states, unless they are `too_large`; then open all states."""
    if texts and not [*store.folder.parent.glob("[0-9a-f]*/")]:
        accelerator.print(
            f"States of frozen layers are kept in {store.folder.parent} until this run ends. "
            "If it is killed, the same command uses them; if you do not repeat it, delete them."
        )
    if large := by_main(lambda: store.too_large(texts, tokenize, compute), accelerator):
        accelerator.print(f"States are not stored, and layers run again for every text: {large}")
    else:
        store.add(
            texts,
            tokenize,
            compute,
            process=accelerator.process_index,
            processes=accelerator.num_processes,
            progress=accelerator.is_main_process,
        )
    accelerator.wait_for_everyone()
    store.open()


def used_examples(
    examples: Sequence[Used], training: TrainingSettings, accelerator: Accelerator
) -> list[Used]:
    """Return the examples that the batches of a training run contain, in the given order."""
    together = training.batch_size * accelerator.num_processes
    batches = step_batches(len(examples), together, training.steps, seed=training.seed)
    return [examples[n] for n in sorted({n for batch in batches for n in batch})]
