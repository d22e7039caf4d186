"""What the tests of scripts/ share: the scripts on the path, a temporary folder for each test, programs that stand in for others."""
import contextlib
import importlib.util
import io
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)


class Parts(unittest.TestCase):
    """A test with a folder of its own, which goes when it ends."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def module_of_data(self, name):
        """data/NAME.py, loaded for this test alone, with the modules beside it."""
        folder = os.path.join(ROOT, "data")
        sys.path.insert(0, folder)
        self.addCleanup(sys.path.remove, folder)
        self.addCleanup(sys.modules.pop, "common", None)
        spec = importlib.util.spec_from_file_location(name + "_of_data", os.path.join(folder, name + ".py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def file(self, name, text, mode=0o644):
        """Writes a file of the folder; returns its path."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(path, mode)
        return path

    def text(self, *names):
        """What a file of the folder holds, its line ends as they are."""
        with open(self.path(*names), newline="", encoding="utf-8") as file:
            return file.read()

    def program(self, name, text):
        """A program of the folder that stands in for another."""
        return self.file(name, text, 0o755)

    def replace(self, owner, name, value):
        """owner.name is value until the test ends."""
        self.addCleanup(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def signal_as_a_process_begins(self):
        """SIGTERM comes just when this program has begun another one. Returns the list that has that process then."""
        began, real = [], subprocess.Popen

        def begin(*arguments, **named):
            began.append(real(*arguments, **named))
            os.kill(os.getpid(), signal.SIGTERM)
            return began[-1]

        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.addCleanup(lambda: [process.kill() or process.wait() for process in began])
        self.replace(subprocess, "Popen", begin)
        return began

    def said(self, function, *arguments):
        """(what it returns, stdout, stderr, exit code or None)"""
        out, err, result, code = io.StringIO(), io.StringIO(), None, None
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                result = function(*arguments)
            except SystemExit as end:
                code = end.code
        return result, out.getvalue(), err.getvalue(), code

    def refused(self, pattern, code, function, *arguments):
        """The function ends the program with one line on stderr and this exit code."""
        _, _, err, found = self.said(function, *arguments)
        self.assertEqual(found, code, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertRegex(err, "^error: .*" + pattern)

    def run_script(self, path, *words):
        """A script of the tree, as a program with these words, but in this process; it catches no signal."""
        folder = os.path.join(ROOT, os.path.dirname(path))
        with mock.patch.object(sys, "argv", [path, *words]), mock.patch.object(sys, "path", [folder, *sys.path]), \
                mock.patch.object(signal, "signal"):
            runpy.run_path(os.path.join(ROOT, path), run_name="__main__")

    def on_full_disk(self, *command, **named):
        """A program for which a limit on the size of files, of 1024 bytes, stands for the full disk."""

        def fill():  # as `ulimit -f 1`; its signal is Python's to turn into an error
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

        return subprocess.run(command, text=True, capture_output=True, preexec_fn=fill, check=False, **named)

    def script_refuses(self, pattern, path, *words):
        self.refused(pattern, 2, self.run_script, path, *words)
