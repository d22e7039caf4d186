"""data/documents.py alone: the line on a terminal, texts read piece by piece, closed folders. What is read is test_data.sh's."""
import errno
import io
import itertools
import os
import pty

from parts import Parts


class Terminal(io.StringIO):
    def __init__(self, descriptor):
        super().__init__()
        self.descriptor = descriptor

    def isatty(self):
        return True

    def fileno(self):
        return self.descriptor


class Documents(Parts):
    def setUp(self):
        super().setUp()
        self.documents = self.module_of_data("documents")

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return path

    def progress(self, files, now):
        ends = pty.openpty()
        for end in ends:
            self.addCleanup(os.close, end)
        terminal = Terminal(ends[1])
        return terminal, self.documents.Progress(files, terminal, now)

    def test_the_line_says_how_far_and_how_long(self):
        files = [self.write("a", "x" * 3000), self.write("b", "x" * 1000)]
        os.environ["TERM"] = "xterm"
        clock = iter([0, 1, 10, 10.1, 30])
        terminal, progress = self.progress(files, lambda: next(clock))
        progress.at(100)  # too early to say when it ends
        progress.at(1000)
        progress.at(1500)  # a tenth of a second later: not drawn
        progress.file_done(files[0])
        progress.at(0)
        lines = [line.strip() for line in terminal.getvalue().split("\r")[1:]]
        self.assertEqual(lines, ["2 %  100 B of 4.0 kB, 100 B/s", "25 %  1.0 kB of 4.0 kB, 100 B/s, 0:00:30 left", "75 %  3.0 kB of 4.0 kB, 100 B/s, 0:00:10 left"])
        self.assertTrue(all(len(line) == 79 for line in terminal.getvalue().split("\r")[1:]))  # what stood there before goes
        progress.end()
        self.assertTrue(terminal.getvalue().endswith("\r" + " " * 79 + "\r"))

    def test_no_line_where_none_can_be_drawn(self):
        files = [self.write("a", "x")]
        os.environ["TERM"] = "dumb"
        terminal, progress = self.progress(files, itertools.count().__next__)
        plain = io.StringIO()
        for said in (progress, self.documents.Progress(files, plain)):
            said.at(1)
            said.say("x")
            said.file_done(files[0])
            said.end()
        self.assertEqual(terminal.getvalue() + plain.getvalue(), "")

    def test_a_large_text_is_read_as_it_is_taken(self):
        path = self.write("large.txt", "word " * 2000000)
        texts = self.documents.texts(path)
        first, begins, position = next(texts)
        self.assertTrue(begins and len(first) <= self.documents.CHUNK and position < 3 << 20)
        self.assertEqual(sum(len(text) for text, begins, _ in texts if not begins) + len(first), 10000000)
        path = self.write("large.jsonl", '{"text": "%s"}\n' % ("x" * 1000) * 5000)
        position = next(self.documents.texts(path))[2]
        self.assertLess(position, 1 << 20)
        self.assertEqual(sum(1 for _ in self.documents.texts(path)), 5000)

    def test_a_text_without_ascii_is_read_as_it_is_taken(self):
        line = "\u4e2d\u6587\u3002\n"
        texts = [text for text, _, _ in self.documents.texts(self.write("large.txt", line * 600000))]
        self.assertEqual((len(texts), "".join(texts) == line * 600000, {text[0] for text in texts[1:]}), (3, True, {"\n"}))

    def test_a_text_is_not_cut_behind_white_space(self):
        for blank in ("\u3000", "\u00a0", "\r"):
            path = self.write("blanks.txt", ("\u4e2d" + blank + "\n") * 700000)
            self.assertEqual(len(list(self.documents.texts(path))), 1)


class Folders(Parts):
    """That of them that cannot be read is an error; the tests may run as root, who can read all, so it is pretended."""

    def setUp(self):
        super().setUp()
        self.documents = self.module_of_data("documents")
        for name in ("a1/x/y.txt", "a2/x/y.txt", "a1/a.txt", "a2/b.txt"):
            self.file(name, "x")
        os.symlink("nowhere", self.path("a1", "link.txt"))
        os.symlink("itself.txt", self.path("a1", "itself.txt"))

    def close(self, name, function):
        """os.FUNCTION of a path below folder NAME, or of that itself for scandir, is not permitted."""
        real, closed = getattr(os, function), self.path(name)

        def checked(path=".", *arguments, **named):
            text = os.path.abspath(path) if isinstance(path, str) else ""
            if text.startswith(closed + os.sep) or function == "scandir" and text == closed:
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return real(path, *arguments, **named)

        self.replace(os, function, checked)

    def denied(self, expected, *words):
        with self.assertRaises(PermissionError, msg=words) as raised:
            self.documents.expand([self.path(word) for word in words], (".txt",))
        self.assertEqual(raised.exception.filename, self.path(expected))

    def found(self, *words):
        return [os.path.relpath(path, self.folder) for path in self.documents.expand([self.path(word) for word in words], (".txt",))]

    def test_all_can_be_read(self):
        self.assertEqual(self.found(""), ["a1/a.txt", "a1/x/y.txt", "a2/b.txt", "a2/x/y.txt"], "links to nowhere are left out")
        self.assertEqual(self.found("a*/[a-k].txt", "**/y.txt"), ["a1/a.txt", "a2/b.txt", "a1/x/y.txt", "a2/x/y.txt"])

    def test_a_folder_that_cannot_be_listed(self):
        self.close("a2", "scandir")
        for words in ("", "a2", "a*/*.txt", "a2/*.txt", "**/*.txt", "**/y.txt", "*/?/y.txt", "a*/**"):
            self.denied("a2", words)
        self.assertEqual(self.found("a1/*/*.txt", "a[13]/[a-k].txt"), ["a1/x/y.txt", "a1/a.txt"], "it is on no way to these")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.path("a2"))
        with self.assertRaises(PermissionError):
            self.documents.expand(["*.txt"], ())

    def test_a_folder_that_can_be_listed_alone(self):
        self.close("a2", "stat")
        self.denied("a2/b.txt", "")
        self.denied("a2/x", "a*/x/y.txt")
        self.denied("a2/b.txt", "a?/b.txt")
