"""data/sharding.py alone, with a pool of processes that is only pretended: what it holds in memory at once, and when it lets go of a file."""
import array
import os

from parts import Parts


class Pool:
    """Does a batch when its result is asked for, and counts those that wait."""

    def __init__(self, workers, *_):
        self.waiting = self.most = 0
        Pool.made = self

    def submit(self, function, *arguments):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return Result(self, function, arguments)

    def shutdown(self, cancel_futures):
        pass


class Result:
    def __init__(self, pool, function, arguments):
        self.pool, self.function, self.arguments = pool, function, arguments

    def result(self):
        self.pool.waiting -= 1
        return self.function(*self.arguments)


class Sharding(Parts):
    def setUp(self):
        super().setUp()
        self.sharding = self.module_of_data("sharding")

    def test_a_long_source_is_read_as_it_is_tokenised(self):
        self.replace(self.sharding.common, "encoding", lambda tokenizer: None)
        self.replace(self.sharding, "_tokenize", lambda texts, eot: [[0] * eot + [len(text)] for text in texts])
        self.replace(self.sharding.concurrent.futures, "ProcessPoolExecutor", Pool)
        batches = ((0, 2 * i, ["a" * i, "b"], True) for i in range(100))
        found = list(self.sharding.tokenized(batches, 3))
        self.assertEqual(found, [(0, n, [0, 1 if n % 2 else n // 2]) for n in range(200)])
        self.assertEqual((Pool.made.most, Pool.made.waiting), (12, 0))  # 4 batches a process

    def test_a_file_is_let_go_of_when_no_later_shard_needs_it(self):
        documents = [(file, document, array.array("H", [file] * 3)) for file in range(3) for document in range(2)]
        self.replace(self.sharding, "tokenized", lambda batches, workers: (document for document in documents))
        let_go = []  # (file, shards that are written by then)
        self.sharding.make_shards(self.folder, "x", ["a", "b", "c"], None, {}, shard_tokens=4,
                                  discard=lambda name: let_go.append((name, sum(name.endswith(".bin") for name in os.listdir(self.folder)))))
        self.assertEqual(let_go, [("a", 2), ("b", 4), ("c", 5)])
