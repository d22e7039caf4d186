"""Many documents to token shards: tokenised by several processes, in order, resumable at every shard.

A source is a list of files and a function that reads the documents of one of them. After each shard a state file
records where in the source the next one begins, so an interrupted run goes on there and ends with the same shards.
"""
import array
import collections
import concurrent.futures
import contextlib
import glob
import itertools
import json
import mmap
import multiprocessing
import multiprocessing.resource_tracker
import os
import queue
import signal
import tempfile
import threading
from concurrent.futures.process import BrokenProcessPool

import common

BATCH_DOCUMENTS = 256  # documents handed to a process at a time: about 1 MB of text
STATE_FILE = "state.json"
_encode = _eot = None  # of a worker process


@contextlib.contextmanager
def _without_ctrl_c():
    """Processes that begin in this block never hear it, not while they import either: it is the parent's to handle. The parent hears
    what came at the end of the block."""
    multiprocessing.resource_tracker.ensure_running()  # which else begins in the block and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(tokenizer):
    global _encode, _eot
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encode, _eot = common.encoding(tokenizer)


def _end_with_parent():
    """A parent that is killed cannot stop its processes: they go when it is gone."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _tokenize(documents, eot):
    """An array of tokens for each document, end-of-text first if eot."""
    first = [_eot] if eot else []
    return [array.array("H", first + _encode(text)) for text in documents]


class State:
    """How far a run has come: shards written; file, document and token at which the next one begins."""

    def __init__(self, folder, prefix, settings):
        self.path = os.path.join(folder, STATE_FILE)
        self.settings = settings
        self.shards, self.file, self.document, self.token, self.done = 0, 0, 0, 0, False
        if os.path.exists(self.path):
            self._load()
        else:
            refuse_leftovers(folder, prefix)

    def _load(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                saved = json.load(file)
            found = saved["settings"]
            self.shards, self.file, self.document, self.token = (int(x) for x in saved["next"])
            self.done = bool(saved["done"])
        except (ValueError, KeyError, TypeError):
            raise common.DataError("%s is damaged; hint: remove it and the shards to begin anew" % self.path, 2) from None
        if found != self.settings:
            raise common.DataError("%s: made with other settings (%s, now %s); hint: another --out, or remove it and the shards to begin "
                                   "anew" % (self.path, json.dumps(found), json.dumps(self.settings)), 2)

    def save(self):
        place = [self.shards, self.file, self.document, self.token]
        common.write_file(self.path, json.dumps({"settings": self.settings, "next": place, "done": self.done}).encode())


def saved_setting(folder, name):
    """A setting of the run that wrote into folder before; None where there was none."""
    try:
        with open(os.path.join(folder, STATE_FILE), encoding="utf-8") as file:
            return json.load(file)["settings"].get(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # State says what is wrong


def add_workers(parser):
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes, default %(default)s")


def add_shard_tokens(parser):
    parser.add_argument("--shard-tokens", type=int, default=common.SHARD_TOKENS, metavar="N", help="default %(default)s")


def check_counts(args):
    """The options that are counts must be at least 1 and fit a shard's header."""
    for name in ("shard_tokens", "max_shards", "workers"):
        value = getattr(args, name, None)
        if value is not None and not 1 <= value < 2**31:
            raise common.DataError("--%s %d: expected 1 to 2147483647" % (name.replace("_", "-"), value), 2)


def _begin_fetch(fetch, name):
    """Starts fetch(name) in a thread; returns a function that waits for its result. The thread ends with the program,
    so that neither Ctrl-C nor --max-shards waits for a download."""
    result = queue.Queue()

    def work():
        try:
            result.put((fetch(name), None))
        except Exception as error:  # handed to whoever waits
            result.put((None, error))

    def wait():
        path, error = result.get()
        if error:
            raise error
        return path

    threading.Thread(target=work, daemon=True).start()
    return wait


def _batches(files, fetch, read, state):
    """Yields (file, first document, texts, True) from the state's place on. The next file is fetched while one is read."""
    coming = _begin_fetch(fetch, files[state.file])
    for index in range(state.file, len(files)):
        path = coming()
        if index + 1 < len(files):
            coming = _begin_fetch(fetch, files[index + 1])
        first = state.document if index == state.file else 0
        documents = itertools.islice(read(path), first, None)
        for start in itertools.count(first, BATCH_DOCUMENTS):
            texts = list(itertools.islice(documents, BATCH_DOCUMENTS))
            if not texts:
                break
            yield index, start, texts, True


def tokenized(batches, workers, tokenizer=None):
    """Yields (file, document, tokens) of batches (file, first document, texts, eot), in order, with end-of-text before each
    text of a batch if eot. At most 4 batches a process are in flight."""
    common.encoding(tokenizer)  # in this process first, where what is missing is one clear line
    context = multiprocessing.get_context("spawn")  # fork would copy the locks of the fetching thread
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _start_worker, (tokenizer,))
    waiting = collections.deque()
    try:
        for index, start, texts, eot in batches:
            with _without_ctrl_c():
                waiting.append((index, start, pool.submit(_tokenize, texts, eot)))
            if len(waiting) >= 4 * workers:
                yield from _documents(*waiting.popleft())
        while waiting:
            yield from _documents(*waiting.popleft())
    except BrokenProcessPool:
        raise common.DataError("a tokenising process died (out of memory?); run again with fewer --workers, what is "
                               "finished is kept") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _documents(index, start, future):
    for offset, tokens in enumerate(future.result()):
        yield index, start + offset, tokens


@contextlib.contextmanager
def spooled(pieces, folder):
    """All tokens of an iterator of arrays as one array, kept in a temporary file of the folder."""
    count = 0
    with tempfile.TemporaryFile(dir=folder) as file:
        for tokens in pieces:
            with common.writing(folder):
                file.write(tokens)
                file.flush()
            count += len(tokens)
        yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("H") if count else array.array("H")


def shard_name(prefix, part, number):
    """part: train, whose shards are numbered from 1, or val, from 0."""
    return "%s_%s_%06d.bin" % (prefix, part, number)


def refuse_leftovers(folder, prefix):
    """Shards of an earlier run beside new ones would be read as one data set."""
    found = sorted(glob.glob(glob.escape(os.path.join(folder, prefix)) + "_*.bin"))
    if found:
        raise common.DataError("%s: there already; hint: another folder or name, or remove the old shards" % found[0], 2)


def make_shards(folder, prefix, files, read, settings, fetch=lambda name: name, discard=None,
                shard_tokens=common.SHARD_TOKENS, workers=1, max_shards=None):
    """Writes PREFIX_val_000000.bin, PREFIX_train_000001.bin, ... under folder, shard_tokens each but the last.

    files: names in order; fetch(name): a path to read (a download, or the name itself); read(path): yields its
    documents; discard(name): called when all shards that need a file are written, perhaps again by a later call. settings: what
    the shards depend on.
    """
    state = State(folder, prefix, dict(settings, shard_tokens=shard_tokens, files=len(files)))
    _let_go(files[:state.file], discard)  # of which a run that was killed behind its last state has let go of none
    if state.done:
        common.say("%s is complete: %d shards" % (folder, state.shards))
        return
    if max_shards is not None and state.shards >= max_shards:
        return
    shard, skip = array.array("H"), state.token
    documents = tokenized(_batches(files, fetch, read, state), workers)
    try:
        for index, document, tokens in documents:
            at, skip = skip, 0
            while at < len(tokens):
                count = min(len(tokens) - at, shard_tokens - len(shard))
                shard.extend(tokens[at:at + count])
                at += count
                if len(shard) == shard_tokens:
                    _finish_shard(folder, prefix, shard, state, (index, document, at), files, discard)
                    shard = array.array("H")
                    if state.shards == max_shards:
                        return
    finally:
        documents.close()
    _finish_shard(folder, prefix, shard, state, (len(files), 0, 0), files, discard)
    if state.shards < 2:
        common.say("note: all of it is in the validation shard; for training shards take a smaller --shard-tokens")


def _finish_shard(folder, prefix, tokens, state, place, files, discard):
    """Writes the shard, then the state, then lets go of the files that no later shard needs."""
    if len(tokens):
        if state.shards == 0:
            state.save()  # a shard without a state would be another run's
        common.write_shard(os.path.join(folder, shard_name(prefix, "train" if state.shards else "val", state.shards)), tokens)
        state.shards += 1
    before = state.file
    state.file, state.document, state.token = place
    state.done = state.file == len(files)
    state.save()
    _let_go(files[before:state.file], discard)


def _let_go(files, discard):
    for name in files if discard else ():
        discard(name)
