"""A backbone as an ONNX file, which ONNX Runtime computes on the CPU, for inference only (extra `onnx`)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from paradigms.io.checks import naming, read_json
from paradigms.io.files import sha256
from paradigms.saved import ONNX

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "last_hidden_state"


def session(file: Path) -> Any:
    """Open an ONNX file in ONNX Runtime, with as many threads as torch uses.

    Raises ValueError, with the file's name, if ONNX Runtime cannot read it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads would take a core
    with naming(file):
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


class ExportedBackbone(nn.Module):
    """The backbone in a folder with config.json and model.onnx, as `saving.write` writes them.

    Its only parameter is the file's SHA-256, which stands for the weights in `identity`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.config = SimpleNamespace(**read_json(folder / "config.json"))
        self.session = session(folder / ONNX)
        digest = bytearray.fromhex(sha256(folder / ONNX))
        self.checksum = nn.Parameter(torch.frombuffer(digest, dtype=torch.uint8), requires_grad=False)

    def forward(
        self, input_ids: Int[Tensor, "x l"], attention_mask: Int[Tensor, "x l"], **_: Tensor
    ) -> tuple[Float[Tensor, "x l w"]]:
        """Return the last hidden states. Raises ValueError in training mode."""
        if self.training:
            raise ValueError("this model was exported to ONNX: train the model that was exported")
        rows = (input_ids, attention_mask)
        inputs = {name: row.long().cpu().numpy() for name, row in zip(INPUTS, rows, strict=True)}
        return (torch.from_numpy(self.session.run([OUTPUT], inputs)[0]).to(input_ids.device),)

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        raise ValueError("this model was exported to ONNX: copy its folder, or save the exported model again")
