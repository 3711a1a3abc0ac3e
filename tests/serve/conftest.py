"""One service of systems of every kind for all tests of the service."""

import pytest

from tests.serve.served import serving, systems


@pytest.fixture(scope="package")
def retrievers(tiny_bert, seq2seq):
    return systems(tiny_bert, seq2seq["t5"])


@pytest.fixture(scope="package")
def port(retrievers):
    with serving(retrievers) as port:
        yield port
