"""What the checks of data/'s scripts share: a copy of the scripts' folder to run them in, GPT-2's vocabulary for it, and the counts.

The scripts run as programs, on stand-ins for their packages (dev/test/stubs), without network. GPT-2's vocabulary is one of 50256
tokens with the bytes at GPT-2's ids, two merges, and fillers that no text makes; so 'a' is 64, a space 220, a newline 198, "th" 256,
"the" 257. Three spaces in a row are 258, two of them, and one: GPT-2's pattern leaves the last one to the word.
"""
import base64
import compileall
import concurrent.futures.process  # this one and urllib: the scripts' processes have them then
import hashlib
import json
import multiprocessing
import os
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

WORK, TRAINER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
DATA, HUB = os.path.join(WORK, "data"), os.path.join(WORK, "hub")
EOT, TH, THE, SPACE, NEWLINE = 50256, 256, 257, 220, 198
STUBS = os.path.abspath("dev/test/stubs")
sys.path.insert(1, STUBS)
passed = failed = 0


def check(name, ok, found=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAIL data: %s: %s" % (name, str(found)[:600]))


def equal(name, found, expected):
    check(name, found == expected, "found %r, expected %r" % (found, expected))


def ids(text):
    """The tokens of an ASCII text by hand: GPT-2's ids of single bytes, and the two merges."""
    single = {" ": SPACE, "\n": NEWLINE}
    out = []
    for part in text.replace("the", "\1").replace("th", "\2"):
        out.append({"\1": THE, "\2": TH}.get(part) or single.get(part) or ord(part) - 33)
    return out


def shard(path):
    """Tokens of a shard; the header is checked here, byte by byte."""
    with open(path, "rb") as file:
        data = file.read()
    n = (len(data) - 1024) // 2
    equal(path + ": header", data[:1024], struct.pack("<3i", 20240520, 1, n) + bytes(1012))
    return list(struct.unpack("<%dH" % n, data[1024:]))


def tree(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names)


def become(path, arguments, cwd, environment):
    """The script as a program in this process, a child that has Python's own modules already. Returns the exit code."""
    os.chdir(cwd)
    for name in ("TEXT", "TIKTOKEN_CACHE_DIR"):  # whoever runs the tests may have set them
        os.environ.pop(name, None)
    os.environ.update(environment)
    sys.argv = [path, *arguments]
    sys.path[0] = DATA
    os.cpu_count = lambda: 1  # one worker, where --workers does not say how many
    time.sleep = lambda seconds: None  # between attempts to download; data_common_parts.py knows how long
    if os.path.basename(path) == "text.py" and "--workers" not in arguments:  # no thread fetches there: a fork is safe, and faster
        context = multiprocessing.get_context
        multiprocessing.get_context = lambda method: context("fork")
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(script, *arguments, cwd=WORK, **environment):
    """A script as a user runs it, in a process of its own; to start Python anew each time would take most of the test's."""
    environment = {"PYTHONPATH": STUBS, "PYTHONDONTWRITEBYTECODE": "1", "HUB": HUB, **environment}
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 1
            try:
                code = become(os.path.join(DATA, script), arguments, cwd, environment)
                sys.stdout.flush()
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(script, code, out.read(), err.read())


def run_on_full_disk(script, *arguments):
    """A limit on the size of files, of 4096 bytes, stands for the full disk: small files fit, a larger one does not."""
    limited = ("import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.path.insert(0, %r); sys.argv = sys.argv[1:]; "
               "runpy.run_path(sys.argv[0], run_name='__main__')" % DATA)
    return subprocess.run([sys.executable, "-c", limited, os.path.join(DATA, script), *arguments], cwd=WORK, text=True, stdout=subprocess.PIPE,
                          env=dict(os.environ, PYTHONPATH=STUBS, PYTHONDONTWRITEBYTECODE="1"), stderr=subprocess.PIPE)


def works(name, done):
    check(name, done.returncode == 0 and not done.stderr, done.stderr)


def refuses(name, words, done, code=2):
    check(name, done.returncode == code and done.stderr.count("\n") == 1 and words in done.stderr,
          "exit %d, expected %d and %r: %s" % (done.returncode, code, words, done.stderr))


def says(name, words, done):
    """A line begins so."""
    check(name, ("\n" + done.stdout).count("\n" + words) == 1, done.stdout)


def write(path, content):
    path = os.path.join(WORK, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def make_ranks():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [bytes([b]) for b in printable + [b for b in range(256) if b not in printable]] + [b"th", b"the", b"  "]
    tokens += [b"\xfe" + bytes([i >> 8, i & 255]) for i in range(50256 - len(tokens))]
    return tokens, b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


def edit(name, *pairs):
    """Replaces text in a script of the copy; what is not there is a failure."""
    path = os.path.join(DATA, name)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for old, new in pairs:
        check("%s has %s" % (name, old), text.count(old) == 1, text.count(old))
        text = text.replace(old, new)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def set_up():
    shutil.copytree("data", DATA, ignore=shutil.ignore_patterns(".venv", ".cache", "*.bin", "__pycache__", "tiny*/", "fineweb*/"))
    tokens, ranks = make_ranks()
    write("ranks", ranks)
    os.makedirs(HUB)
    edit("common.py", ("306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", hashlib.sha256(ranks).hexdigest()),
         ('"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"', repr("file://" + WORK + "/vocab.bpe")))
    compileall.compile_dir(DATA, quiet=1)
    return tokens


def parquet(path, **columns):
    return write(path, json.dumps(columns))


def trainer(*arguments):
    return subprocess.run([TRAINER, "--device", "cpu", *arguments], cwd=WORK, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
