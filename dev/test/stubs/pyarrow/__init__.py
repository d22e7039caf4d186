"""Stands in for pyarrow in test_data.sh: a "parquet" file is JSON, {column: [values]}."""


class ArrowException(Exception):
    pass
