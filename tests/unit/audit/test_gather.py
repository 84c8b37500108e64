"""Does evidence that went elsewhere become files that can be verified, whatever was between its lines?"""

import io
import json
import random
from itertools import chain
from pathlib import Path

import pytest

from sidecar.audit.chain import MAX_LINE_BYTES
from sidecar.audit.gather import gather, lines_in
from sidecar.audit.recorder import Audit
from sidecar.audit.sinks import open_sink
from sidecar.audit.verify import verify
from sidecar.settings.load import load_settings
from tests.at_once import at_once
from tests.unit.audit.scenes import KEY, FakeClock, forward, numbered_ids, open_audit, run
from tests.valkey import running_valkey


def log_of(folder: Path, instance: str, *, calls: int = 5, times: int = 1) -> list[bytes]:
    """The lines of one instance; of more where a start goes on with the chain."""
    path = folder / f"of-{instance.replace('/', '')}.jsonl"
    for number in range(times):
        audit = open_audit(path, instance=f"{instance}{number or ''}")
        for _ in range(calls):
            forward(audit)
        at_once(audit.close())
    return path.read_bytes().splitlines()


def holds(path: Path) -> bool:
    return verify([path], part=True).ok


def test_lines_of_many_are_sorted_out_and_what_is_none_is_passed_over(tmp_path: Path) -> None:
    one, two = log_of(tmp_path, "one"), log_of(tmp_path, "two")
    mixed = chain.from_iterable((b"", b"sidecar serves", a, b'{"v":1}', b) for a, b in zip(one, two, strict=True))
    files = gather(mixed, tmp_path / "gathered")
    assert [file.name for file in files] == ["0000-one.jsonl", "0001-two.jsonl"]
    assert [file.read_bytes().splitlines() for file in files] == [one, two] and all(map(holds, files))


def test_a_restart_that_goes_on_is_one_chain_and_one_that_begins_another(tmp_path: Path) -> None:
    going_on, anew = log_of(tmp_path, "one", times=3), log_of(tmp_path, "two")
    files = gather([*going_on, *anew], tmp_path / "gathered")
    assert [len(file.read_bytes().splitlines()) for file in files] == [30, 10] and all(map(holds, files))


def test_what_came_twice_or_in_another_order_is_put_right(tmp_path: Path) -> None:
    lines = log_of(tmp_path, "one", calls=50)
    shuffled = [*lines, *lines[10:40]]
    random.Random(7).shuffle(shuffled)
    (file,) = gather(shuffled, tmp_path / "gathered")
    assert file.read_bytes().splitlines() == lines and holds(file)


def test_what_was_done_to_a_line_is_there_to_be_found(tmp_path: Path) -> None:
    lines = log_of(tmp_path, "one")
    forged = lines[4].replace(b'"status":null', b'"status":"success"')
    for name, given in {
        "changed": [*lines[:4], forged, *lines[5:]],
        "removed": [*lines[:4], *lines[5:]],
        "doubled otherwise": [*lines, forged],
    }.items():
        (file,) = gather(given, tmp_path / name)
        assert not holds(file), name


def test_no_instance_chooses_where_its_file_is(tmp_path: Path) -> None:
    (file,) = gather(log_of(tmp_path, "../../etc/passwd"), tmp_path / "gathered")
    assert file.parent == tmp_path / "gathered" and "/" not in file.name


def test_what_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "gathered").mkdir()
    (tmp_path / "gathered" / "mine").touch()
    with pytest.raises(OSError, match="is not empty"):
        gather([], tmp_path / "gathered")


def test_a_line_without_end_is_passed_over_and_not_kept_in_memory() -> None:
    long = b"x" * (3 * MAX_LINE_BYTES)
    assert list(lines_in(io.BytesIO(b"one\r\n" + long + b"\ntwo\nthree"))) == [b"one", b"two", b"three"]


# --- the command ------------------------------------------------------------------------------------------------------


def test_standard_input_is_sorted_out_by_the_command_and_what_it_wrote_verifies(tmp_path: Path) -> None:
    lines = b"started\n" + b"\n".join(log_of(tmp_path, "one"))
    done = run("gather", tmp_path / "g", given=lines)
    assert (done.exit_code, done.output) == (0, f"{tmp_path}/g/0000-one.jsonl\n")
    assert run("verify", f"{tmp_path}/g/0000-one.jsonl", "--part").exit_code == 0
    again = run("gather", tmp_path / "g", given=lines)
    assert (again.exit_code, again.output) == (1, f"Error: {tmp_path / 'g'}: is not empty\n")


def test_a_stream_is_read_back_with_its_anchor(tmp_path: Path) -> None:
    (folder := tmp_path / "sidecar.yaml").touch()
    with running_valkey() as valkey:
        stream = "audit: {sink: redis, redis: {stream: evidence}}"
        folder.write_text(f"version: 1\nstore: {{url: '{valkey.url}'}}\n{stream}\n")
        sink, found = open_sink(load_settings(folder, {}, check_files=False), KEY, "one")
        named = {"key": KEY, "durability": "strict", "instance": "one", "clock": FakeClock(), "new_id": numbered_ids()}
        audit = Audit(sink, found, **named)
        for _ in range(250):
            forward(audit)
        at_once(audit.close())
        done = run("gather", tmp_path / "g", "--from-store", "-c", folder)
        assert done.exit_code == 0, done.output
    assert verify([Path(done.output.strip())], key=KEY).ok
    done = run("gather", tmp_path / "h", "--from-store", "-c", folder)
    assert done.exit_code == 1 and "ConnectionError" in done.output


def test_standard_input_is_verified_chain_by_chain(tmp_path: Path) -> None:
    one, two = log_of(tmp_path, "one"), log_of(tmp_path, "two")
    done = run("verify", "-", given=b"\n".join([b"log", *one, *two]))
    assert done.exit_code == 0 and done.output.count("the evidence holds") == 2
    done = run("verify", "-", "--json", given=b"\n".join([*one[:3], *one[4:], *two]))
    assert done.exit_code == 5 and [json.loads(line)["ok"] for line in done.output.splitlines()] == [False, True]
    assert run("verify", "-", given=b"nothing\n").exit_code == 2
