"""One step of a measurement, in this process: generate a policy and questions, or measure the engine under them.

`measurement.climbed` starts it. Generating is a separate step, so that its memory is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from pathlib import Path

from sidecar.policy.worker_process import load_policy_aside
from sidecar.policy_tools.bench import ladder
from sidecar.policy_tools.bench.measurement import DRAW, measured
from sidecar.settings.shipped_files import shipped


def main() -> None:
    step, folder, (rows, wild, questions) = sys.argv[1], Path(sys.argv[2]), map(float, sys.argv[3:6])
    questions_file = folder / "questions.json"
    if step == DRAW:
        policy = ladder.drawn(int(rows), wild=wild)
        (folder / "policies").mkdir()
        ladder.write(policy, folder / "policies")
        questions_file.write_text(json.dumps(list(islice(ladder.questions(policy, int(questions)), int(questions)))))
        return
    asked = [ladder.DrawnQuestion(*one) for one in json.loads(questions_file.read_text())]
    began = time.perf_counter()
    source = load_policy_aside(shipped("models"), folder / "policies")
    told = measured(source, asked, time.perf_counter() - began, now_s=time.time())
    sys.stdout.write(json.dumps({"wild": wild, **told}) + "\n")


if __name__ == "__main__":
    main()
