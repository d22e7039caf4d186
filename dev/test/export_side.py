"""Exports as other programs read them: the gguf package and llama.cpp (llama-cpp-python). Called by checkpoint/test_gguf.sh.

  tensors DIRECTORY FILE.gguf    every tensor of the Hugging Face directory is in the file, bit for bit, or rounded as its type says
  greedy FILE.gguf PROMPT N      llama.cpp's greedy continuation of N tokens
"""
import json
import os
import sys

import numpy as np

NAMES = {'wte': 'token_embd', 'wpe': 'position_embd', 'ln_f': 'output_norm', 'ln_1': 'attn_norm', 'ln_2': 'ffn_norm',
         'attn.c_attn': 'attn_qkv', 'attn.c_proj': 'attn_output', 'mlp.c_fc': 'ffn_up', 'mlp.c_proj': 'ffn_down'}


def safetensors(path):
    with open(path, 'rb') as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), 'little')))
        data = file.read()
    header.pop('__metadata__', None)
    return {name: np.frombuffer(data[slice(*e['data_offsets'])], np.float32).reshape(e['shape'])
            for name, e in header.items()}


def name_in_gguf(name):
    parts = name.removeprefix('transformer.').split('.')
    block = f'blk.{parts[1]}.' if parts[0] == 'h' else ''
    return block + NAMES['.'.join(parts[2 if block else 0:-1])] + '.' + parts[-1]


def tensors(directory, path):
    import gguf
    theirs = safetensors(os.path.join(directory, 'model.safetensors'))
    found = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert sorted(found) == sorted(map(name_in_gguf, theirs)), 'names'
    for name, values in theirs.items():
        tensor = found[name_in_gguf(name)]
        if '.c_' in name and values.ndim == 2:
            values = values.T
        assert list(tensor.shape) == list(reversed(values.shape)), name
        expected = gguf.quants.quantize(np.ascontiguousarray(values), tensor.tensor_type)
        assert np.array_equal(expected.view(np.uint8).ravel(), np.ascontiguousarray(tensor.data).view(np.uint8).ravel()), name
    print(len(found), 'tensors equal', sorted({t.tensor_type.name for t in found.values()}))


def greedy(path, prompt, n):
    import llama_cpp
    model, out = llama_cpp.Llama(model_path=path, n_ctx=64, verbose=False), []
    tokens = model.tokenize(prompt.encode(), add_bos=False, special=False)
    for token in model.generate(tokens, temp=0.0, top_k=1, repeat_penalty=1.0):
        out.append(token)
        if len(out) == int(n):
            break
    sys.stdout.buffer.write(prompt.encode() + model.detokenize(out))


{'tensors': tensors, 'greedy': greedy}[sys.argv[1]](*sys.argv[2:])
