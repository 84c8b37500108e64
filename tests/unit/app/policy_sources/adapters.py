"""Adapters and watchers as third parties write them, and as they fail. They run in the process that reads rows, and
import nothing of ours."""

import os
import sys
import threading
import time
from pathlib import Path

from casbin import persist


class Lines(persist.Adapter):
    """Loads lines of a file as Casbin's own adapters do, and prints on the way."""

    def __init__(self, path, **more):
        self.path, self.more = path, more

    def load_policy(self, model):
        print("loading", self.path)
        os.write(1, b"{}\n")
        assert sys.stdin.read() == ""
        for line in Path(self.path).read_text().splitlines():
            persist.load_policy_line(line, model)

    def save_policy(self, model):
        raise AssertionError("an adapter is read only")

    add_policy = remove_policy = remove_filtered_policy = save_policy


class Filling:
    """Fills the model's tables itself. `rows` are those of `p`."""

    def __init__(self, *rows):
        self.rows = rows

    def load_policy(self, model):
        assert model.model["p"]["p"].tokens == ["p_sub", "p_obj", "p_act"] and "r" in model.model
        model.model["p"]["p"].policy = list(self.rows)
        model.model["g"]["g"].policy.append(["alice", "admin"])


class Numbers:
    """Gives as many rows as a file says."""

    def __init__(self, path):
        self.path = path

    def load_policy(self, model):
        said = Path(self.path).read_text()
        if said == "raise":
            raise ConnectionError("cannot reach db://reader:hunter2@db.example/x, password=swordfish")
        if said == "hang":
            time.sleep(600)
        if said == "die":
            os._exit(3)
        if said == "exit":
            sys.exit(4)
        for number in range(int(said)):
            persist.load_policy_line(f"p, alice, data{number}, read", model)


class Waiting:
    async def load_policy(self, model):
        pass


class FileWatcher:
    """Tells of a change as soon as a file is there."""

    def __init__(self, path):
        self.path = Path(path)

    def set_update_callback(self, callback):
        threading.Thread(target=self._watch, args=(callback,), daemon=True).start()

    def _watch(self, callback):
        while not self.path.exists():
            time.sleep(0.005)
        for _ in range(50):
            callback("changed")

    def update(self):
        raise AssertionError("a change is made by others")
