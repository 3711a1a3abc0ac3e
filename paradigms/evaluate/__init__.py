"""Measure runs, test differences between systems, and make tables of results."""

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
    undecided,
    with_judgements,
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
