"""The device of models: `--device` of the scripts and of the terminal's commands."""

import os
import re
from importlib import import_module

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from paradigms.cli.arguments import main
from paradigms.encoder.precision import native_precision
from paradigms.io.command_line import command_line
from paradigms.io.device import VARIABLE, choose_device, chosen_device


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with two GPUs, where no device was chosen."""
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: cuda)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_the_chosen_device_is_that_of_models(name):
    choose_device("")
    assert chosen_device() == torch.device("cuda")
    choose_device(name)
    assert chosen_device() == torch.device(name)
    if name == "cpu":
        AcceleratorState._reset_state(reset_partial_state=True)
        assert Accelerator().device == torch.device("cpu")
        AcceleratorState._reset_state(reset_partial_state=True)
    else:
        assert native_precision(chosen_device()) == "bf16"


@pytest.mark.parametrize("name", ["cuda:2", "mps", "cpu "])
def test_a_device_that_is_not_there_ends_with_a_line(name, capsys):
    with pytest.raises(SystemExit, match=r"^--device") as ended:
        main(["search", "folder", "text", "--device", name])
    said = r"--device( .*: torch finds no such device.*| must be cpu, cuda, .*)"
    assert re.fullmatch(said, str(ended.value))
    script = import_module("explore").Settings
    with pytest.raises(SystemExit):
        command_line(script, "", ["--device", name], device=True)
    assert capsys.readouterr().err.startswith("--device")
    assert VARIABLE not in os.environ


def test_several_processes_choose_no_device(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a launch of several"):
        choose_device("cpu")
