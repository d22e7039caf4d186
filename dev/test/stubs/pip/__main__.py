"""Stands in for pip in test_data.sh: `pip download --dest DIR ... PACKAGE` packs the file RANKS as the wheel that has it."""
import os
import sys
import zipfile

arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments and arguments[-1] == "mlx-whisper==0.4.3", arguments
if "RANKS" not in os.environ:
    sys.exit("no network")
with zipfile.ZipFile(os.path.join(arguments[arguments.index("--dest") + 1], "mlx_whisper-0.4.3.whl"), "w") as wheel:
    wheel.write(os.environ["RANKS"], "mlx_whisper/assets/gpt2.tiktoken")
