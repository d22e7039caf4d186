"""Whether this Python has the packages of requirements.txt, in versions that it takes: exit code 0, else 1."""
import importlib.metadata
import os
import re
import sys


def numbers(version):
    return [int(digits) for digits in re.findall(r"\d+", version)]


def has(requirement):
    name, least, below = re.split(r">=|,<", requirement)
    try:
        return numbers(least) <= numbers(importlib.metadata.version(name)) < numbers(below)
    except importlib.metadata.PackageNotFoundError:
        return False


with open(os.path.join(os.path.dirname(__file__), "requirements.txt"), encoding="utf-8") as file:
    sys.exit(not all(has(line) for line in file if not line.startswith("#")))
