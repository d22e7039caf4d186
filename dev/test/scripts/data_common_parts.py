"""data/common.py alone: files, downloads from a server of this test's own, GPT-2's ranks, how a script ends."""
import ast
import base64
import errno
import hashlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import types

from parts import ROOT, Parts

DATA = os.path.join(ROOT, "data")


class Common(Parts):
    def setUp(self):
        super().setUp()
        self.common = self.module_of_data("common")

    def fails(self, pattern, code, function, *arguments, **named):
        with self.assertRaisesRegex(self.common.DataError, pattern) as raised:
            function(*arguments, **named)
        self.assertEqual(raised.exception.code, code)


class Facts(Common):
    def test_of_gpt2(self):
        self.assertEqual((self.common.EOT, self.common.SHARD_TOKENS, self.common.RANKS_SHA256),
                         (50256, 10**8, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"))
        self.assertEqual(self.common.GPT2_PATTERN, r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")
        with open(os.path.join(DATA, "common.py"), encoding="utf-8") as file:
            source = file.read()
        for fact in ("1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5", "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"):
            self.assertEqual(source.count(fact), 1, fact)


class Files(Common):
    def test_a_file_is_on_the_disk_before_it_takes_its_name(self):
        path, calls, fsync, replace = self.file("x.bin", "old"), [], os.fsync, os.replace
        self.replace(os, "fsync", lambda number: calls.append(("sync", os.path.getsize(self.path("x.bin.partial")))) or fsync(number))
        self.replace(os, "replace", lambda a, b: calls.append(("name", self.text("x.bin"))) or replace(a, b))
        self.common.write_file(path, b"ab", b"c")
        self.assertEqual(calls, [("sync", 3), ("name", "old")])
        self.assertEqual((self.text("x.bin"), os.listdir(self.folder)), ("abc", ["x.bin"]))

    def test_a_failed_write_leaves_the_old_file_alone(self):
        path = self.file("x.bin", "old")

        def full(number):
            raise OSError(errno.ENOSPC, "No space left on device")

        self.replace(os, "fsync", full)
        with self.assertRaises(OSError) as raised:
            self.common.write_file(path, b"new")
        self.assertEqual((raised.exception.filename, self.text("x.bin"), os.listdir(self.folder)), (path, "old", ["x.bin"]))

    def test_a_folder_in_the_way(self):
        """The files before it go, too."""
        os.makedirs(self.path("b", "in the way"))
        with self.assertRaises(OSError) as raised, self.common.together() as write:
            write(self.path("a"), b"a")
            write(self.path("b"), b"b")
        self.assertEqual((raised.exception.filename, os.listdir(self.folder)), (self.path("b"), ["b"]))

    def test_tokens_are_little_endian(self):
        written = []
        self.common.write_shard(self.path("x.bin"), [1, 513, 65535], write=lambda path, *parts: written.append(b"".join(parts)))
        self.assertEqual(written[0][1024:], b"\1\0\1\2\xff\xff")

    def test_folders_are_made(self):
        self.common.write_file(self.path("a", "b", "x"), b"1")
        self.assertEqual(self.text("a", "b", "x"), "1")

    def test_sizes_and_checksums(self):
        path, digest = self.file("x", "abc"), hashlib.sha256(b"abc").hexdigest()
        self.assertEqual(self.common.sha256_of(path), digest)
        self.common.check_file(path, 3, digest)
        self.common.check_file(path)
        for size in (2, 4):
            self.fails(f"x: size: expected {size} bytes, found 3", 2, self.common.check_file, path, size)
        self.fails("what: sha256: expected 0123, found " + digest, 2, self.common.check_file, path, 3, "0123", "what")

    def test_a_shard_that_its_header_cannot_count(self):
        if "numpy" not in sys.modules:
            self.addCleanup(sys.modules.pop, "numpy")
            sys.modules["numpy"] = types.ModuleType("numpy")  # it is refused before an array is made
        self.fails("2147483648 tokens are more than", 1, self.common.write_shard, self.path("x.bin"), range(2**31))
        self.assertEqual(os.listdir(self.folder), [])


class TwoAtOnce(Common):
    """Two scripts that write at the same time."""

    def begin(self, program):
        """A process with this program, in which common is imported; it has said that it began."""
        process = subprocess.Popen([sys.executable, "-B", "-c", "import os, sys, time; sys.path.insert(0, %r); import common\n%s" % (DATA, program)],
                                   cwd=self.folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: process.poll() is None and (process.kill() or process.communicate()))
        process.said = process.stdout.readline()
        return process

    def test_into_one_folder(self):
        """The second is refused and changes nothing. The lock goes with a process that is killed."""
        holds = "with common.output('out', 'x'):\n    open('out/x_1.bin.partial', 'w').close()\n    print('ready', flush=True)\n    sys.stdin.read()"
        first = self.begin(holds)
        for path in (self.path("out"), self.path("out") + os.sep):
            with self.assertRaisesRegex(self.common.DataError, "^--out .*out/?: another script is writing there; hint: ") as raised:
                self.common.output(path, "x").__enter__()
            self.assertEqual(raised.exception.code, 2)
        self.assertEqual((first.said, sorted(os.listdir(self.path("out")))), ("ready\n", ["data.lock", "x_1.bin.partial"]))
        first.kill()
        first.communicate()
        with self.common.output(self.path("out"), "x"):
            self.assertEqual(os.listdir(self.path("out")), ["data.lock"], "what the killed one left goes")
        self.assertEqual(os.listdir(self.path("out")), [])

    def test_a_lock_that_is_removed_as_another_waits_for_it(self):
        calls, lock = [], self.common.fcntl.lockf

        def late(file, how):
            if not calls:
                os.remove(self.path("data.lock"))  # by the script that had it
            calls.append(how)
            return lock(file, how)

        self.replace(self.common.fcntl, "lockf", late)
        with self.common.output(self.folder, "x"):
            self.assertEqual((len(calls), os.listdir(self.folder)), (2, ["data.lock"]))

    def test_a_file_system_without_locks(self):
        def none(file, how):
            raise OSError(errno.ENOLCK, "No locks available")

        self.replace(self.common.fcntl, "lockf", none)
        with self.common.output(self.path("out"), "x"):
            self.common.write_file(self.path("out", "x"), b"1")
        self.assertEqual(os.listdir(self.path("out")), ["x"])

    def test_a_users_file_of_the_locks_name(self):
        mine = self.file("data.lock", "mine")
        self.fails("data.lock: expected the empty file that locks a folder", 2, self.common.output(self.folder, "x").__enter__)
        self.assertEqual(self.text("data.lock"), "mine")
        os.rename(mine, self.path("mine"))
        os.symlink("mine", mine)
        self.fails("data.lock: expected the empty file that locks a folder", 2, self.common.output(self.folder, "x").__enter__)
        self.assertEqual(self.text("mine"), "mine")

    def test_one_file_from_two_folders(self):
        """As data/gpt2_tokenizer.bin: the second waits until the first one's has its name."""
        first = self.begin("with common.together() as write:\n    write('x', b'first')\n    print('ready', flush=True)\n    sys.stdin.read()")
        second = self.begin("lock = common.fcntl.lockf\ncommon.fcntl.lockf = lambda *how: print('locks', flush=True) or lock(*how)\n"
                            "common.write_file('x', b'second')")
        self.assertEqual((first.said, second.said), ("ready\n", "locks\n"))
        for process in (first, second):
            self.assertEqual((process.communicate()[1], process.returncode), ("", 0))
        self.assertEqual((self.text("x"), os.listdir(self.folder)), ("second", ["x"]))


class Kinds(Common):
    # Of which the scripts read a part themselves, and say so.
    READ = "gzip", "parquet", "arrow"

    def test_files_that_are_no_text_are_those_of_the_trainer(self):
        with open(os.path.join(ROOT, "llmc", "base", "file_kind.c"), encoding="utf-8") as file:
            table = file.read().split("kinds[] = {")[1].split("\n};")[0]
        literal = r'"(?:[^"\\]|\\.)*"'
        rows = re.findall(r"\{(\d+),\s*(\d+),\s*((?:%s\s*)+),\s*(%s),\s*(NULL|%s)\s*\}" % (literal, literal, literal), table)
        self.assertEqual((len(rows) > 20, len(rows)), (True, table.count("{")))
        of_trainer = []
        for at, n, begin, kind, how in rows:
            magic = b"".join(ast.literal_eval("b" + word) for word in re.findall(literal, begin))
            self.assertEqual(len(magic), int(n), kind)
            kind, how = ast.literal_eval(kind), None if how == "NULL" else ast.literal_eval(how)
            of_trainer.append((int(at), magic, kind, "" if kind in self.READ else how))
        self.assertEqual([(*row[:3], "" if row[2] in self.READ else row[3]) for row in self.common.BINARY], of_trainer)

    def test_each_is_refused(self):
        for at, magic, kind, how in self.common.BINARY:
            path = self.path("x.txt")
            with open(path, "wb") as file:
                file.write(b"x" * at + magic + b"x")
            self.fails(f"x.txt: looks like {kind}, not text; hint: {re.escape(how or 'training data are text')}", 2, self.common.check_text, path)


class Downloads(Common):
    def setUp(self):
        super().setUp()
        self.answers, self.slept, asked = [], [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler):
                asked.append(handler.path)
                status, length, body = self.answers.pop(0)
                handler.send_response(status)
                if length is not None:
                    handler.send_header("Content-Length", str(length))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(handler, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.replace(self.common.time, "sleep", self.slept.append)
        self.asked, self.url = asked, f"http://127.0.0.1:{server.server_port}/x"
        os.environ["no_proxy"] = "127.0.0.1"
        self.addCleanup(os.environ.pop, "no_proxy", None)

    def download(self, *answers, **named):
        self.answers[:] = answers
        self.common.download(self.url, self.path("got", "x"), **named)

    def left(self):
        return os.listdir(self.path("got"))

    def test_a_download(self):
        self.download((200, 3, b"abc"), size=3, sha256=hashlib.sha256(b"abc").hexdigest())
        self.assertEqual((self.text("got", "x"), self.left(), self.asked, self.slept), ("abc", ["x"], ["/x"], []))
        self.download((200, None, b"no length"))
        self.assertEqual(self.text("got", "x"), "no length")

    def test_a_server_that_is_busy(self):
        self.download((503, 0, b""), (500, 0, b""), (200, 3, b"abc"))
        self.assertEqual((self.text("got", "x"), self.slept), ("abc", [2, 4]))
        self.fails("/x: HTTP status 503", 1, self.download, *[(503, 0, b"")] * 3)
        self.assertEqual(len(self.asked), 6)

    def test_what_is_not_there(self):
        self.fails("/x: HTTP status 404", 1, self.download, (404, 0, b""))
        self.assertEqual((len(self.asked), self.left()), (1, []))

    def test_a_download_that_breaks_off(self):
        self.download((200, 3, b"ab"), (200, 3, b"abc"))
        self.assertEqual((self.text("got", "x"), self.slept), ("abc", [2]))
        self.fails("/x: ", 1, self.download, *[(200, 3, b"ab")] * 3)
        self.fails("/x: ", 1, self.download, *[(200, 3, b"ab")] * 2, tries=2)
        self.assertEqual(self.answers, [])
        self.assertEqual(self.text("got", "x"), "abc", "the old file stands")

    def test_a_download_that_is_another(self):
        for size in (2, 4):
            self.fails(f"/x: size: expected {size} bytes, found 3", 2, self.download, (200, 3, b"abc"), size=size)
        self.fails("/x: sha256: expected 01, found", 2, self.download, (200, 3, b"abc"), sha256="01")
        self.assertEqual(self.left(), [])


class Ranks(Common):
    # As vocab.bpe spells: U+0120 is the space, U+010A the newline.
    MERGES = "#version: 0.2\n\u0120 t\n\u010a \u010a\n\u0120t h\n"

    def test_from_merges(self):
        lines = [line.split() for line in self.common._ranks_from_merges(self.MERGES).splitlines()]
        tokens = [base64.b64decode(token) for token, _ in lines]
        self.assertEqual([int(rank) for _, rank in lines], list(range(259)))
        self.assertEqual((tokens[0], tokens[93], tokens[94], tokens[105:107]), (b"!", b"~", b"\xa1", [b"\xac", b"\xae"]))
        self.assertEqual((tokens[187], tokens[188], tokens[220], tokens[221], tokens[255]), (b"\xff", b"\0", b" ", b"\x7f", b"\xad"))
        self.assertEqual(tokens[256:], [b" t", b"\n\n", b" th"])

    def fetch(self, *sources):
        self.replace(self.common, "_ranks_from_openai", sources[0])
        self.replace(self.common, "_ranks_from_package_index", sources[1])
        return self.common._fetch_ranks()

    def test_where_they_come_from(self):
        def fails(folder):
            raise self.common.DataError("no route")

        self.common.RANKS_SHA256 = hashlib.sha256(b"good").hexdigest()
        self.assertEqual(self.fetch(lambda folder: b"good", fails), b"good")
        self.assertEqual(self.fetch(fails, lambda folder: b"good"), b"good")
        self.assertEqual(self.fetch(lambda folder: b"bad", lambda folder: b"good"), b"good")
        self.fails("no route; then sha256: expected .*; hint: where there is no network", 1, self.fetch, fails, lambda folder: b"bad")

    def test_they_are_kept(self):
        self.common.RANKS_FILE = self.path("kept")
        ranks = b"%s 0\n%s 1\n" % (base64.b64encode(b"a"), base64.b64encode(b"bc"))
        self.common.RANKS_SHA256 = hashlib.sha256(ranks).hexdigest()
        fetched = []
        self.replace(self.common, "_fetch_ranks", lambda: fetched.append(1) or ranks)
        for text in ("", "other"):  # not there, another
            if text:
                self.file("kept", text)
            self.assertEqual(self.common.gpt2_ranks(), {b"a": 0, b"bc": 1})
            self.assertEqual(self.common.gpt2_ranks(), {b"a": 0, b"bc": 1})
        self.assertEqual(len(fetched), 2)


class Ends(Common):
    def end(self, error):
        def main():
            raise error

        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        return self.said(self.common.run, main)[2:]

    def test_exit_codes(self):
        error = OSError(errno.ENOSPC, "No space left on device", "x.bin")
        for raised, said in ((self.common.DataError("a\n b", 2), ("error: a b\n", 2)), (self.common.DataError("a"), ("error: a\n", 1)),
                             (KeyboardInterrupt(), ("error: interrupted; what is finished is kept\n", 130)),
                             (error, ("error: x.bin: No space left on device\n", 1)),
                             (FileNotFoundError(errno.ENOENT, "No such file", "y"), ("error: y: No such file\n", 2)),
                             (PermissionError(errno.EACCES, "Permission denied", "y"), ("error: y: Permission denied\n", 2)),
                             (OSError("short words"), ("error: short words\n", 1))):
            self.assertEqual(self.end(raised), said)
        text, code = self.end(ModuleNotFoundError("No module", name="numpy"))
        self.assertEqual((text.startswith("error: the Python package numpy is missing; hint: make data/.venv"), code), (True, 2))

    def test_sigterm(self):
        program = ("import sys, time; sys.path.insert(0, %r); import common\ndef main():\n    try:\n        print('ready', flush=True)\n"
                   "        while True: time.sleep(0.01)\n    finally:\n        print('closed', flush=True)\ncommon.run(main)")
        process = subprocess.Popen([sys.executable, "-B", "-c", program % DATA], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.terminate()
        out, err = process.communicate(timeout=600)
        self.assertEqual((process.returncode, out, err), (130, "closed\n", "error: interrupted; what is finished is kept\n"))
