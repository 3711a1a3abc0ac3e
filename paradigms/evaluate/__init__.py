"""Measure runs, test differences, and show results: tables, figures and the report."""

from paradigms.evaluate.measures import (
    MEASURES,
    Interval,
    PerQuery,
    candidates,
    cutoff_curve,
    has_answer,
    on_split,
    over_seeds,
    per_query,
    seeds_interval,
    with_judgements,
)
from paradigms.evaluate.report import (
    AlignmentExample,
    Picture,
    Report,
    cost_picture,
    recall_picture,
    write_pictures,
    write_report,
)
from paradigms.evaluate.significance import compare, holm, paired_test
from paradigms.evaluate.table import (
    ResultTable,
    csv_table,
    markdown_table,
    result_table,
    rich_matrix,
    rich_table,
    write_per_query,
)
