"""Corpus statistics that an alignment A may use.

They are the number of documents n, the document frequency df_t of each token t, and the number of tokens.

`STATISTICS` maps names to statistics; a name is a checksum of the content. An alignment refers to its
statistics by name (`align.Idf`). A checkpoint with such an alignment stores the statistics in `FILE`; opening
the checkpoint verifies the file's checksum, vocabulary and numbers:

    counted = model.count_corpus(texts)
    weighed = model.with_alignment(Idf(statistics=counted.name), "total")
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from paradigms.io.checks import check_header, naming

FILE = "statistics.safetensors"
STATISTICS: dict[str, "Statistics"] = {}  # of every corpus counted or loaded in this process


@dataclass(frozen=True, eq=False)
class Statistics:
    """Token counts of a corpus. Each object registers itself in `STATISTICS`.

    documents: number of documents. tokens: number of counted tokens in all documents. frequencies: df_t, the
    number of documents that contain token t, for each id of the vocabulary. floors: a similarity for each id,
    for alignments of excess (`align.TableExcess`). Raises ValueError if the numbers contradict each other.
    """

    documents: int
    tokens: int
    frequencies: Int[Tensor, " v"]
    floors: Float[Tensor, " w"] | None = None

    def __post_init__(self) -> None:
        least, most = (int(value) for value in self.frequencies.aminmax())
        if not 0 <= least <= most <= self.documents or int(self.frequencies.sum()) > self.tokens:
            raise ValueError(
                f"frequencies from {least} to {most} are not of {self.documents} documents with "
                f"{self.tokens} tokens"
            )
        if self.floors is not None and not (
            self.floors.shape == self.frequencies.shape and self.floors.isfinite().all()
        ):
            raise ValueError(f"floors must be {len(self.frequencies)} finite numbers")
        STATISTICS[self.name] = self

    @classmethod
    def of(cls, documents: Iterable[Int[Tensor, " l"]], vocabulary: int) -> "Statistics":
        """Count the tokens of documents, given as token ids below `vocabulary`."""
        frequencies = torch.zeros(vocabulary, dtype=torch.long)
        count = 0
        tokens = 0
        for ids in documents:
            frequencies[ids.unique()] += 1
            count += 1
            tokens += len(ids)
        return cls(count, tokens, frequencies)

    @property
    def name(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of all numbers."""
        content = hashlib.sha256(f"{self.documents} {self.tokens}".encode())
        content.update(self.frequencies.long().cpu().numpy().tobytes())
        if self.floors is not None:
            content.update(self.floors.float().cpu().numpy().tobytes())
        return content.hexdigest()[:16]

    def idf(self, ids: Int[Tensor, "*x"]) -> Float[Tensor, "*x"]:
        """log(1 + (n − df + ½) / (df + ½)) for each id, in float64, as in BM25; never negative.

        Raises ValueError for an id beyond the vocabulary.
        """
        self._check(ids)
        df = self.frequencies.to(ids.device)[ids].double()
        return ((self.documents - df + 0.5) / (df + 0.5)).log1p()

    def floors_of(self, ids: Int[Tensor, "*x"]) -> Float[Tensor, "*x"]:
        """Return the floor of each id; 0 for ids below 0, which are not of the vocabulary.

        Raises ValueError for an id beyond the vocabulary, or if there are no floors.
        """
        if self.floors is None:
            raise ValueError(f"the statistics {self.name} have no floors: count the corpus with count_floors")
        self._check(ids.clamp(min=0))
        return self.floors.to(ids.device)[ids.clamp(min=0)].where(ids >= 0, 0)

    def _check(self, ids: Int[Tensor, "*x"]) -> None:
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.frequencies):
            raise ValueError(
                f"ids from {int(ids.min())} to {int(ids.max())} are not of the {len(self.frequencies)} "
                "tokens that were counted: another tokenizer made them"
            )

    def save(self, folder: Path) -> None:
        numbers = {"documents": torch.tensor(self.documents), "tokens": torch.tensor(self.tokens)}
        numbers |= {"frequencies": self.frequencies.long().cpu()}
        if self.floors is not None:
            numbers["floors"] = self.floors.float().cpu()
        save_file(numbers, folder / FILE)

    @classmethod
    def load(cls, folder: Path, name: str, vocabulary: int) -> "Statistics":
        """Read statistics written by `save`. name, vocabulary: the name and the number of tokens to expect.

        Raises FileNotFoundError if the folder has no statistics, and ValueError, naming the file, if the
        statistics are damaged or belong to another checkpoint.
        """
        file = folder / FILE
        if not file.is_file():
            raise FileNotFoundError(f"{folder} needs the corpus statistics {name}, and has no {FILE}")
        with naming(file):
            check_header(file)
            values = load_file(file)
            if values.keys() - {"floors"} != {"documents", "tokens", "frequencies"}:
                raise ValueError(f"it holds {', '.join(sorted(values))}")
            counts = int(values["documents"]), int(values["tokens"])
            read = cls(*counts, values["frequencies"], values.get("floors"))
            if read.name != name:
                raise ValueError(f"these are {read.name}, not {name}, which the alignment reads")
            if len(read.frequencies) != vocabulary:
                raise ValueError(f"it counts {len(read.frequencies)} tokens, and the model has {vocabulary}")
        return read


def statistics_of(name: str) -> Statistics:
    """Look up statistics in `STATISTICS` by name.

    Raises ValueError if this process has neither counted nor loaded them.
    """
    if name not in STATISTICS:
        raise ValueError(
            f"no statistics {name!r:.40}: open the checkpoint that holds them, or count the corpus "
            "(count_corpus)"
        )
    return STATISTICS[name]
