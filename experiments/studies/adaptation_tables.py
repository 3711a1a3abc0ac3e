"""What Qian et al. 2022 print of alignments: their tables, and the sentences that need sizes beyond a CPU."""

from collections.abc import Sequence

from studies.pages import Undecided

from paradigms.index.strategies import MEASURED, STRATEGIES

PAPER = "Qian et al. 2022"


# Training alignment -> its table, and for each collection nDCG@10 in percent by strategy, of the base model.
# SQuAD is not in the paper; these are of NQ, also question answering. Of Table 13 the columns of ε.
SOFT = [name for name in MEASURED if name.startswith("eps=")]


TABLES: dict[str, tuple[str, Sequence[str], dict[str, Sequence[float]]]] = {
    "k=1": (
        "Tables 3 and 7",
        [*STRATEGIES, "k=16", "p=5%"],
        {
            "scifact": (70.4, 68.8, 65.0, 60.9, 55.6, 71.1, 69.4, 67.2, 62.7, 38.6, 39.0),
            "nfcorpus": (34.0, 33.2, 32.0, 29.9, 27.8, 33.6, 31.7, 30.5, 28.6),
            "squad": (52.2, 48.3, 36.3, 26.6, 19.9, 52.2, 49.2, 43.5, 36.3),
        },
    ),
    "k=4": (
        "Table 11",
        list(STRATEGIES),
        {
            "scifact": (70.1, 70.6, 70.4, 69.2, 68.0, 69.6, 66.7, 65.6, 64.9),
            "nfcorpus": (31.8, 33.5, 33.9, 33.6, 33.0, 29.9, 26.3, 25.7, 25.2),
            "squad": (42.3, 49.4, 52.4, 51.2, 49.1, 42.3, 37.3, 30.9, 25.3),
        },
    ),
    "p=1%": (
        "Table 12",
        list(STRATEGIES),
        {
            "scifact": (69.0, 67.9, 64.8, 61.5, 57.2, 70.5, 70.3, 68.1, 63.9),
            "nfcorpus": (34.7, 33.7, 32.1, 30.2, 27.8, 34.3, 32.7, 31.6, 29.6),
            "squad": (52.6, 48.2, 36.4, 26.4, 20.2, 52.5, 50.4, 44.7, 38.2),
        },
    ),
    "eps=0.01": (
        "Table 13",
        SOFT,
        {
            "scifact": (69.8, 69.5, 70.3, 71.0, 70.1),
            "nfcorpus": (34.1, 34.4, 34.2, 34.2, 33.5),
            "squad": (52.0, 51.6, 50.8, 50.0, 46.0),
        },
    ),
}


BM25 = {"scifact": 66.5, "nfcorpus": 32.5, "squad": 32.9}  # Table 2


ADAPTED = 49.0  # NQ with 8 examples, trained with k=1: Table 2


FULL = "25,000 steps of 256 queries of MS MARCO on several GPUs (experiments/configs/aligner_full.yaml)"


UNDECIDED: list[Undecided] = [
    (
        f"{PAPER}, §4.2, Figure 3",
        "our multi-vector retriever model scales better than single-vector dual encoder GTR",
        f"T5 base to XXL, each {FULL}",
    ),
    (
        f"{PAPER}, §A.5, Tables 8 to 10",
        "model accuracy improves as we scale to larger models",
        f"T5 large to XXL, each {FULL}",
    ),
    (
        f"{PAPER}, §4.2, Table 2",
        "outperforms state-of-the-art sparse and dense retrievers on MS MARCO",
        f"T5 base, {FULL}, and 8.8 million passages to search",
    ),
    (
        f"{PAPER}, §4.2, Figure 5",
        "When the default alignment (top-k=1) is not optimal, we can identify a good alignment strategy "
        "using only 8 examples",
        "a collection of which this is known before its test queries are seen (ArguAna); gains stand in the "
        "table of adaptation",
    ),
    (
        f"{PAPER}, abstract",
        "improves the performance up to 15.7 points nDCG@10 for argument retrieval tasks",
        "ArguAna and Touché-2020 in --collections",
    ),
    (
        f"{PAPER}, §4.2, Figure 5",
        "Using 16 examples further improves the average score and reduces the variance",
        "an interval of a variance over folds; the deviations stand in the table of adaptation",
    ),
]
