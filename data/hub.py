"""Files of a Hugging Face dataset: listed, fetched, and checked against the size and sha256 that the hub states."""
import os

import common


class Dataset:
    """A dataset repository at the revision that it has now; every later call uses that one."""

    def __init__(self, repository, revision=None):
        import huggingface_hub
        self.repository = repository
        self.library = huggingface_hub
        self.revision = self._ask(lambda api: api.dataset_info(repository, revision=revision, timeout=20)).sha

    def _ask(self, question):
        """question(api), its failures as one line. The library raises many kinds of errors, httpx's and its own."""
        try:
            return question(self.library.HfApi())
        except common.DataError:
            raise
        except Exception as error:
            raise common.DataError("Hugging Face, dataset %s: %s: %s; hint: a local copy, as --source"
                                   % (self.repository, type(error).__name__, error)) from None

    def files(self):
        return self._ask(lambda api: api.list_repo_files(self.repository, repo_type="dataset", revision=self.revision))

    def fetch(self, name, folder, replaces=True):
        """Path of the file under folder, downloaded if it is not there already and whole. Another file of that name is replaced, or
        an error."""
        info = self._ask(lambda api: api.get_paths_info(self.repository, [name], repo_type="dataset",
                                                        revision=self.revision))[0]
        sha256 = info.lfs.sha256 if info.lfs else None
        path = os.path.join(folder, name)
        if os.path.exists(path):
            try:
                common.check_file(path, info.size, sha256)
                return path
            except common.DataError as error:
                if not replaces:
                    raise common.DataError("%s; hint: another --out; remove it to have the hub's" % error, 2) from None
                os.remove(path)
        common.say("downloading %s, %.1f GB" % (name, info.size / 1e9))
        self._ask(lambda api: api.hf_hub_download(self.repository, name, repo_type="dataset", revision=self.revision,
                                                  local_dir=folder))
        try:
            common.check_file(path, info.size, sha256)
        except common.DataError:
            os.remove(path)
            raise
        return path

