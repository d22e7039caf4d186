#!/usr/bin/env python3
"""A byte-level BPE tokenizer of your own text, with GPT-2's way of cutting text into words.

Writes OUT/tokenizer.json, vocab.json, merges.txt and tokenizer_config.json, which the trainer takes as --tokenizer OUT (a new
model then has as many tokens as the tokenizer) and transformers as GPT2Tokenizer. The 256 bytes come first, so that every text
can be encoded, then the merges as they were learned, and <|endoftext|> last. Files are read as data/text.py reads them.
"""
import json
import os

import common
import documents

LEAST, MOST = 257, 1 << 16  # bytes and end-of-text; what a shard's uint16 counts
LONGEST = 128  # bytes of a token
EOT = "<|endoftext|>"


def learn(texts, vocab_size, min_frequency):
    """The merges that the library learns, as pairs of spelled tokens."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False, special_tokens=[],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=LONGEST)
    tokenizer.train_from_iterator(texts, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]


def vocabulary(merges, vocab_size):
    """({token: id}, merges). One merge makes a token: a second way to the same one is left out, as GPT-2 has none."""
    tokens = {spelled: i for i, spelled in enumerate(common.SPELLING)}
    kept = []
    for pair in merges:
        if "".join(pair) not in tokens and len(tokens) < vocab_size - 1:
            tokens["".join(pair)] = len(tokens)
            kept.append(pair)
    tokens[EOT] = len(tokens)
    return tokens, kept


FILES = "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"


def files_of(tokens, merges):
    """{name: content} of FILES"""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"id": tokens[EOT], "content": EOT, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "vocab": tokens, "merges": [" ".join(pair) for pair in merges]}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added], "normalizer": None,
             "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
    config = {"add_prefix_space": False, "clean_up_tokenization_spaces": False, "tokenizer_class": "GPT2Tokenizer",
              "bos_token": EOT, "eos_token": EOT, "unk_token": EOT}
    as_json = lambda value, **options: json.dumps(value, ensure_ascii=False, **options).encode()
    return dict(zip(FILES, (as_json(whole, indent=1), as_json(tokens),
                            "".join(["#version: 0.2\n", *("%s %s\n" % pair for pair in merges)]).encode(), as_json(config, indent=2))))


def make(args):
    """Learns the tokenizer and writes its files."""
    for name in FILES:
        if os.path.lexists(os.path.join(args.out, name)):
            raise common.DataError("%s/%s: there already; hint: another folder, or remove it" % (args.out, name), 2)
    files = documents.files_of(args)
    progress = documents.Progress(files)
    n = [0]

    def texts():
        for text, _ in documents.all_texts(files, args.field, documents.errors_of(args), progress):
            n[0] += len(text)
            yield text
        progress.say("learning %d tokens" % args.vocab_size)

    merges = learn(texts(), args.vocab_size, args.min_frequency)
    progress.end()
    if not n[0]:
        raise common.DataError("%s: no text in it" % ", ".join(args.files), 2)
    tokens, merges = vocabulary(merges, args.vocab_size)
    with common.together() as write:
        for name, content in files_of(tokens, merges).items():
            write(os.path.join(args.out, name), content)
    common.say("%s: %d tokens from %s characters; to train with them: --tokenizer %s" % (args.out, len(tokens), format(n[0], ","), args.out))
    if len(tokens) < args.vocab_size:
        common.say("note: no more than %d tokens, the text has no other pair %d times; hint: more text, a smaller --vocab-size"
                   % (len(tokens), args.min_frequency))


def main():
    parser = common.Parser(__doc__)
    documents.add_reading(parser)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--vocab-size", type=int, default=8192, metavar="N",
                        help="tokens, default %(default)s; models round their table up to a multiple of 128")
    parser.add_argument("--min-frequency", type=int, default=2, metavar="N", help="of a pair that is merged, default %(default)s")
    args = parser.parse_args()
    if not 1 <= args.min_frequency <= 1 << 30:
        raise common.DataError("--min-frequency %d: expected 1 to %d" % (args.min_frequency, 1 << 30), 2)
    if not LEAST <= args.vocab_size <= MOST:
        raise common.DataError("--vocab-size %d: expected %d to %d" % (args.vocab_size, LEAST, MOST), 2)
    with common.output(args.out, "tokenizer"):
        make(args)


if __name__ == "__main__":
    common.run(main)
