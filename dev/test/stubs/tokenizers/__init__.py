"""Stands in for tokenizers in test_data.sh, for ASCII alone: byte pair merging learned and applied in plain Python."""
import collections
import json
import re
import types

PIECE = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [b for b in range(256) if b not in PRINTABLE]
SPELLED = {**{b: chr(b) for b in PRINTABLE}, **{b: chr(256 + i) for i, b in enumerate(OTHERS)}}


def _words(text):
    return [tuple(SPELLED[b] for b in piece.encode()) for piece in PIECE.findall(text)]


def _merged(word, pair):
    out = []
    for token in word:
        if out and (out[-1], token) == pair:
            out[-1] += token
        else:
            out.append(token)
    return tuple(out)


class Tokenizer:
    encode_special_tokens = False

    def __init__(self, model):
        self.merges, self.vocab = [], {}

    @staticmethod
    def from_file(path):
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
        self, model = Tokenizer(None), whole["model"]
        self.vocab, self.merges = model["vocab"], [tuple(merge.split(" ")) for merge in model["merges"]]
        self.most = whole["truncation"] and whole["truncation"]["max_length"]
        return self

    def no_truncation(self):
        self.most = None

    def no_padding(self):
        pass

    def train_from_iterator(self, iterator, trainer):
        assert not trainer.show_progress and not trainer.special_tokens and len(trainer.initial_alphabet) == 256
        words = collections.Counter(word for text in iterator for word in _words(text))
        tokens = {SPELLED[b] for b in range(256)}
        while len(tokens) < trainer.vocab_size:
            pairs = collections.Counter()
            for word, count in words.items():
                for pair in zip(word, word[1:]):
                    pairs[pair] += count
            best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
            if best is None or pairs[best] < trainer.min_frequency:
                break
            self.merges.append(best)
            tokens.add("".join(best))
            words = collections.Counter({_merged(word, best): count for word, count in words.items()})

    def to_str(self):
        return json.dumps({"model": {"merges": self.merges}})

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens and self.encode_special_tokens
        ids = []
        for word in _words(text):
            for pair in self.merges:
                word = _merged(word, pair)
            ids += [self.vocab[token] for token in word]
        return types.SimpleNamespace(ids=ids[:self.most])

    def token_to_id(self, token):
        return self.vocab.get(token)

    def get_vocab(self):
        return self.vocab
