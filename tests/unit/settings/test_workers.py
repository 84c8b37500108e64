"""What do workers need, and where does each keep what is its own?"""

from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings.load import load_settings
from sidecar.settings.sidecar_file import Settings

SHARED = 'store: {url: "redis://127.0.0.1:6379"}\nsessions: {store: redis}\ntasks: {store: redis}\n'


def loaded(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "sidecar.yaml").write_text(f"version: 1\n{text}")
    return load_settings(folder / "sidecar.yaml", environ, check_files=False)


@pytest.mark.parametrize("workers", ["2", "auto"])
def test_a_start_names_each_setting_that_is_missing(tmp_path: Path, workers: str) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, f"server: {{workers: {workers}}}\n")
    faults = refused.value.faults
    assert {fault.code for fault in faults} == {"S195"} and {fault.line for fault in faults} == {2}
    assert {fault.message.rpartition("and ")[2] for fault in faults} == {
        "store.url names none",
        "sessions.store names none",
        "tasks.store names none",
    }
    assert loaded(tmp_path, f"server: {{workers: {workers}}}\n{SHARED}").server.workers in (2, "auto")


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ("audit: {sink: stdout}\n", "cannot share the standard output"),
        ("audit: {checkpoints: {known_path: a.jsonl}}\n", "has its own log"),
        ("upstreams: {a: {a2a: {url: 'http://127.0.0.1:1', grpc_port: 0}}}\n", "a fixed port for gRPC"),
    ],
)
def test_what_one_process_alone_can_have_is_refused(tmp_path: Path, more: str, where: str) -> None:
    text = f'server: {{workers: 2, grpc: "127.0.0.1:8081"}}\n{SHARED}{more}'
    with pytest.raises(SettingsError, match=where) as refused:
        loaded(tmp_path, text)
    assert [fault.code for fault in refused.value.faults] == ["S195"]
    loaded(tmp_path, text.replace("workers: 2", "workers: 1"))


def test_a_port_that_the_system_chooses_cannot_be_shared_over_grpc(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a fixed port for gRPC"):
        loaded(tmp_path, f'server: {{workers: 2, grpc: "127.0.0.1:0"}}\n{SHARED}')


def test_a_worker_that_is_not_among_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no worker 3 among 2"):
        loaded(tmp_path, f"server: {{workers: 2, worker: 3}}\n{SHARED}")


def test_each_worker_has_a_part_of_the_folder_and_shares_the_keys(tmp_path: Path) -> None:
    text = f"server: {{workers: 2}}\n{SHARED}"
    alone, second = loaded(tmp_path, text), loaded(tmp_path, text, SIDECAR_SERVER__WORKER="2")
    data = tmp_path / "data"
    assert (alone.own, second.own) == (data, data / "workers" / "2")
    assert second.audit_path == data / "workers" / "2" / "audit" / "audit.jsonl"
    assert second.checkpoint_key_path.is_relative_to(second.own) and second.evidence_path.is_relative_to(second.own)
    for name in ("audit_key_path", "signing_key_path", "callback_key_path", "control_path"):
        assert getattr(alone, name) == getattr(second, name)
    configured = loaded(tmp_path, f"{text}audit: {{path: logs/a.jsonl}}\n", SIDECAR_SERVER__WORKER="2")
    assert configured.audit_path == tmp_path / "logs" / "worker-2" / "a.jsonl"


def test_all_logs_that_are_there_are_named(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "")
    assert settings.audit_paths == ()
    for worker in (10, 2, 0):
        path = settings.own_of(worker) / "audit" / "audit.jsonl"
        path.parent.mkdir(parents=True)
        path.touch()
    assert [path.parts[-3] for path in settings.audit_paths] == ["data", "2", "10"]
    assert [part.name for part in settings.parts] == ["data", "2", "10"]
    assert [part.name for part in settings.idle_parts] == ["2", "10"]
    second = loaded(tmp_path, f"server: {{workers: 2}}\n{SHARED}", SIDECAR_SERVER__WORKER="1")
    assert [part.name for part in second.idle_parts] == ["data", "10"]
