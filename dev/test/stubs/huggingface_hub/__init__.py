"""Stands in for huggingface_hub in test_data.sh: the datasets are the folders of HUB, a repository's name with + for its slash."""
import hashlib
import os
import shutil
import types

REVISION = "r1"


class HfApi:
    def _root(self, repository, repo_type, revision):
        root = os.path.join(os.environ["HUB"], repository.replace("/", "+"))
        if repo_type != "dataset" or revision != REVISION or not os.path.isdir(root):
            raise RuntimeError("no such %s: %s at %s" % (repo_type, repository, revision))
        return root

    def dataset_info(self, repository, revision=None, timeout=None):
        assert timeout and timeout < 60
        self._root(repository, "dataset", revision or REVISION)
        return types.SimpleNamespace(sha=revision or REVISION)

    def list_repo_files(self, repository, repo_type, revision):
        root = self._root(repository, repo_type, revision)
        return sorted((os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names), reverse=True)

    def get_paths_info(self, repository, names, repo_type, revision):
        found = []
        for name in names:
            with open(os.path.join(self._root(repository, repo_type, revision), name), "rb") as file:
                data = file.read()
            lfs = types.SimpleNamespace(sha256=hashlib.sha256(data).hexdigest())
            found.append(types.SimpleNamespace(size=len(data), lfs=lfs))
        return found

    def hf_hub_download(self, repository, name, repo_type, revision, local_dir):
        path = os.path.join(local_dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(self._root(repository, repo_type, revision), name), path)
        if os.environ.get("HUB_DAMAGES") == os.path.basename(name):
            with open(path, "r+b") as file:
                file.write(b"X")
        with open(os.path.join(os.environ["HUB"], "fetched"), "a") as file:
            file.write(name + "\n")
