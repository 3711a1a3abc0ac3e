"""Measure runs, test differences, and show results: tables, pictures and the report."""

from paradigms.evaluate.answers import has_answer, with_judgements
from paradigms.evaluate.measures import (
    CUTOFFS,
    MEASURES,
    Interval,
    PerQuery,
    bootstrap_interval,
    bootstrap_intervals,
    cutoff_curve,
    on_split,
    over_seeds,
    per_query,
    seeds_interval,
)
from paradigms.evaluate.pictures import alignment_picture, recall_picture, write_pictures
from paradigms.evaluate.report import AlignmentExample, Report, SystemAlignment, write_report
from paradigms.evaluate.significance import Comparison, compare, holm, paired_test
from paradigms.evaluate.table import (
    Cell,
    ResultRow,
    ResultTable,
    csv_table,
    markdown_table,
    result_table,
    rich_matrix,
    rich_table,
    write_per_query,
)

__all__ = [
    "CUTOFFS",
    "MEASURES",
    "AlignmentExample",
    "Cell",
    "Comparison",
    "Interval",
    "PerQuery",
    "Report",
    "ResultRow",
    "ResultTable",
    "SystemAlignment",
    "alignment_picture",
    "bootstrap_interval",
    "bootstrap_intervals",
    "compare",
    "csv_table",
    "cutoff_curve",
    "has_answer",
    "holm",
    "markdown_table",
    "on_split",
    "over_seeds",
    "paired_test",
    "per_query",
    "recall_picture",
    "result_table",
    "rich_matrix",
    "rich_table",
    "seeds_interval",
    "with_judgements",
    "write_per_query",
    "write_pictures",
    "write_report",
]
