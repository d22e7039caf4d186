import json
import types

import pyarrow


class Value(str):
    def as_py(self):
        return None if self == "null" else str(self)


class Number(int):
    def as_py(self):
        return int(self)


class ParquetFile:
    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                self.columns = json.load(file)
        except ValueError as error:
            raise pyarrow.ArrowException("not parquet: %s" % error) from None
        self.metadata = types.SimpleNamespace(num_rows=max(map(len, self.columns.values())))
        self.schema_arrow = types.SimpleNamespace(names=list(self.columns))

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        return False

    def iter_batches(self, batch_size, columns):
        assert batch_size > 0 and len(columns) == 1
        values = [Value(value) if isinstance(value, str) else Number(value) for value in self.columns[columns[0]]]
        for start in range(0, len(values), 2):
            yield types.SimpleNamespace(column=lambda index, start=start: values[start:start + 2] if index == 0 else None)
