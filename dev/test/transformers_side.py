"""transformers' side of test_transformers.sh: makes a model folder as a user of it does, and says what it makes of ours.

transformers_side.py make TEXT FOLDER               a random GPT-2 and a BPE tokenizer trained on TEXT, by save_pretrained
transformers_side.py read TEXT OUT NAME=FOLDER...   for each folder OUT/NAME.said, its strings and loss, and OUT/NAME.textN, greedy text
transformers_side.py choices VOCABULARY FILE        random items of multiple choice
transformers_side.py choose FOLDER FILE             of each item the ending of the smallest mean loss, a digit an item

Of a folder: "round trip" where each string comes back, "bytes" where its ids are its bytes; the tokens of nine tenths of TEXT, and the mean
loss of the first 8 windows of 32 tokens of its last tenth.
"""
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TRANSFORMERS_NO_ADVISORY_WARNINGS="1")
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

STRINGS = ["h\u00e9llo\n", "", " two  spaces , and a comma .", "don't we're 1234", "<|endoftext|>", "\u5b57 \U0001f600\t\x00\x7f", "\r\n\u00a0\u2003x"]


def text_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def make(text, folder):
    from tokenizers import ByteLevelBPETokenizer
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([text_of(text)], vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>",
                                        clean_up_tokenization_spaces=False)
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=64, n_layer=2, n_head=2,
                        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


PROMPTS = ["The ", "line, isn't"]


def said(tokenizer, model, text):
    """What the tokenizer makes of the strings, and the loss of the model."""
    ids = [tokenizer.encode(string) for string in STRINGS]
    if [tokenizer.decode(tokens) for tokens in ids] == STRINGS:
        yield "round trip"
    if ids == [list(string.encode()) for string in STRINGS] and len(tokenizer) == 256:
        yield "bytes"
    tokens = tokenizer.encode(text)
    held = torch.tensor(tokens[9 * len(tokens) // 10:][:8 * 32 + 1])
    with torch.no_grad():
        logits = model(held[:-1].view(8, 32)).logits
    loss = torch.nn.functional.cross_entropy(logits.view(8 * 32, -1).double(), held[1:])
    yield "%s tokens" % format(9 * len(tokens) // 10, ",")
    yield "val loss %.5f" % loss


def read(text, out, *folders):
    for name, folder in (argument.split("=", 1) for argument in folders):
        tokenizer, model = AutoTokenizer.from_pretrained(folder), GPT2LMHeadModel.from_pretrained(folder).eval()
        with open(os.path.join(out, name + ".said"), "w") as file:
            file.write("".join(line + "\n" for line in said(tokenizer, model, text_of(text))))
        for number, prompt in enumerate(PROMPTS):
            ids = tokenizer(prompt, return_tensors="pt")
            # Not token_type_ids, which 4.44 brings for PreTrainedTokenizerFast: GPT-2 would add the embedding of token 0.
            made = model.generate(ids.input_ids, attention_mask=ids.attention_mask, max_new_tokens=24, do_sample=False, pad_token_id=0)[0].tolist()
            with open(os.path.join(out, "%s.text%d" % (name, number)), "wb") as file:
                file.write(tokenizer.decode(made).encode() + b"\n")


def choices(vocabulary, path):
    """60 items in the form of data/hellaswag.py, some longer than 64 positions."""
    import random
    import struct
    random.seed(5)
    stream = []
    for index in range(60):
        item = [65535, 0, index, random.randrange(4), 4]
        for least, most in [(1, 60)] + 4 * [(1, 30)]:
            n = random.randint(least, most)
            item += [n, *random.choices(range(int(vocabulary)), k=n)]
        item[1] = 2 * len(item)
        stream += item
    with open(path, "wb") as file:
        file.write(struct.pack("<5i", 20240522, 1, 60, 400, int(vocabulary)).ljust(1024, b"\0") + struct.pack("<%dH" % len(stream), *stream))


def choose(folder, path):
    """One ending at a time, without padding: the plainest way there is."""
    import struct
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    with open(path, "rb") as file:
        data = file.read()[1024:]
    stream = iter(struct.unpack("<%dH" % (len(data) // 2), data))
    chosen = ""
    for _ in stream:
        _, _, _, endings = (next(stream) for _ in range(4))
        context = [next(stream) for _ in range(next(stream))]
        losses = []
        for _ in range(endings):
            ending = [next(stream) for _ in range(next(stream))]
            row = torch.tensor((context + ending)[-model.config.n_positions - 1:])
            with torch.no_grad():
                logits = model(row[None, :-1]).logits[0].double()
            losses.append(torch.nn.functional.cross_entropy(logits[-len(ending):], row[-len(ending):]).item())
        chosen += str(losses.index(min(losses)))
    print(chosen)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
