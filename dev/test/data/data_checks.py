"""The scripts of data/ against token streams written by hand, one after the other: later checks use what earlier ones left.

Usage: data_checks.py WORK TRAINER, from the repository root. Prints one line a failure, and the counts at the end.
"""
import os
import subprocess
import sys

import data_case
import download_checks
import text_checks
import tokenizer_checks
from data_case import DATA, HUB, TRAINER, check, set_up


def test_trainer():
    """The trainer reads what the scripts write, from another folder, with the tokenizer that lies there."""
    done = subprocess.run([TRAINER, "--device", "cpu", "--layers", "1", "--heads", "2", "--channels", "16", "--batch", "1", "--seq", "8", "--steps", "1",
                           "--warmup", "0", "--sample-tokens", "1", "--train", os.path.join(DATA, "own/text_train_*.bin"), "--prompt", "the"],
                          cwd=HUB, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    check("the trainer: tokens", "1 shard, 901 tokens (uint16)" in done.stdout, done.stdout)
    check("the trainer: tokenizer", "bpe of 50257 tokens, beside the shards: %s/own/../gpt2_tokenizer.bin" % DATA in done.stdout, done.stdout)


def main():
    tokens = set_up()
    text_checks.test_vocabulary(tokens)
    text_checks.test_text()
    text_checks.test_folders()
    text_checks.test_json_lines()
    text_checks.test_globs_and_columns()
    tokenizer_checks.test_train_tokenizer()
    text_checks.test_refused_text()
    text_checks.test_failures()
    download_checks.test_tinyshakespeare()
    download_checks.test_tinystories()
    download_checks.test_fineweb()
    download_checks.test_pretokenized()
    download_checks.test_hellaswag()
    download_checks.test_signal()
    test_trainer()
    print("data: %d passed, %d failed, 0 skipped" % (data_case.passed, data_case.failed))
    return data_case.failed > 0


if __name__ == "__main__":
    sys.exit(main())
