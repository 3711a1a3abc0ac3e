"""A setting of the wrong type raises an error with its name before anything uses it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from paradigms.io.checks import check_types


@dataclass
class Settings:
    kind: Literal["a", "b"] = "a"
    bits: Literal[1, 2, 4] = 1
    whole: int = 1
    maybe: int | None = None
    real: float = 0.5
    flag: bool = False
    text: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)


def test_values_of_their_types_pass():
    check_types(Settings("b", whole=np.int64(3), maybe=4, real=2))
    check_types(Settings(flag=True, text="x", knobs={"k": 1}, real=np.float32(0.5)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "c"}, "kind='c'; there are a, b"),
        ({"bits": 3}, "bits=3; there are 1, 2, 4"),
        ({"bits": 4.0}, "bits=4.0; there are 1, 2, 4"),
        ({"bits": True}, "bits=True; there are 1, 2, 4"),
        ({"whole": 64.0}, "whole=64.0; it must be int"),
        ({"whole": True}, "whole=True; it must be int"),
        ({"whole": None}, "whole=None; it must be int"),
        ({"maybe": "1"}, "maybe='1'; it must be int or null"),
        ({"real": "0.5"}, "real='0.5'; it must be float"),
        ({"flag": 1}, "flag=1; it must be bool"),
        ({"text": 3}, "text=3; it must be str"),
        ({"knobs": [1]}, r"knobs=\[1\]; it must be Mapping"),
    ],
)
def test_a_value_of_another_type_is_named(values, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_types(Settings(**values))
