"""Stands in for tiktoken in test_data.sh, for ASCII alone: plain byte pair merging by rank, with the pattern that it is given."""
import functools
import re


class Encoding:
    def __init__(self, name, *, pat_str, mergeable_ranks, special_tokens, explicit_n_vocab):
        assert name == "gpt2" and special_tokens == {"<|endoftext|>": 50256}
        assert explicit_n_vocab == len(mergeable_ranks) + 1 == 50257
        self.ranks = mergeable_ranks
        self.pattern = re.compile(pat_str.replace(r"\p{L}", "A-Za-z").replace(" ?A-Za-z+", " ?[A-Za-z]+")
                                  .replace(r"\p{N}", "0-9").replace(" ?0-9+", " ?[0-9]+"))

    def encode_ordinary(self, text):
        return [token for piece in self.pattern.findall(text) for token in self._merge(piece.encode())]

    @functools.lru_cache(maxsize=None)
    def _merge(self, piece):
        parts = [piece[i:i + 1] for i in range(len(piece))]
        while True:
            pairs = [(self.ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            if not pairs or min(pairs)[0] == 1 << 30:
                return [self.ranks[part] for part in parts]
            i = min(pairs)[1]
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
