"""Does sidecar.yaml say what it seems to say, and nothing dangerous by omission?"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.settings import Settings, load_settings
from sidecar.settings.addresses import ListenAddress, UnixAddress
from sidecar.settings.load import doubts
from sidecar.settings.load import load as load_document
from sidecar.settings.server import TlsFiles


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    path = folder / "sidecar.yaml"
    path.write_text("version: 1\n" + text)
    return load_settings(path, environ or {}, check_files=False)


def fault_in(folder: Path, text: str) -> tuple[str, str]:
    with pytest.raises(SettingsError) as error:
        load(folder, text)
    (fault,) = error.value.faults
    assert fault.line > 0
    return fault.code, fault.message


def test_arguments_in_clear_are_doubted_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 1\naudit:\n  clear_arguments:\n    tool:pay/refund: [/amount, /max_tokens]\n")
    (doubt,) = doubts(load_document(path, {}, check_files=False))
    assert (doubt.code, doubt.severity, doubt.line) == ("S151", "warning", 4)
    assert "/amount, /max_tokens of the calls of tool:pay/refund" in doubt.message


def test_the_shortest_file_gives_loopback_enforcement_and_strict_audit(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    assert settings.server.listen == ListenAddress("127.0.0.1", 8080)
    assert settings.admin.listen == ListenAddress("127.0.0.1", 9090)
    assert (settings.policy.mode, settings.store.url, settings.store.on_failure) == ("enforce", "memory://", "deny")
    assert (settings.audit.sink, settings.audit.durability) == ("file", "strict")
    assert (settings.server.max_body_bytes, settings.server.max_response_bytes) == (2**20, 10 * 2**20)
    assert settings.upstreams == {}


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "data: state\npolicy: {path: /etc/rules}\nlocal: [{listen: 'unix:p.sock', principal: nhi:p}]\n"
    )
    assert settings.data == tmp_path / "state"
    assert settings.policy.path == Path("/etc/rules")
    assert settings.policy.models == tmp_path / "models"
    assert settings.local[0].listen == UnixAddress(tmp_path / "p.sock")
    assert settings.audit_path == tmp_path / "state/audit/audit.jsonl"
    assert settings.audit_key_path == tmp_path / "state/keys/audit.key"


def test_quantities_are_read_with_their_units(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "server: {shutdown_grace_s: 2m, body_timeout_s: 500ms, header_timeout_s: 3, max_body_bytes: 64KiB}\n"
    )
    server = settings.server
    assert (server.shutdown_grace_s, server.body_timeout_s, server.header_timeout_s) == (120.0, 0.5, 3.0)
    assert server.max_body_bytes == 65536


def test_settings_do_not_change(tmp_path: Path) -> None:
    settings = load(tmp_path, "")
    with pytest.raises(ValueError, match="frozen"):
        settings.store.url = "redis://elsewhere"


PUBLIC = "public_url: https://gw.acme.example"

ACCEPTED = [
    f"server: {{listen: '0.0.0.0:8080', {PUBLIC}, tls: external}}",
    f"server: {{listen: '[::]:8080', {PUBLIC}/, tls: {{cert_path: c.pem, key_path: k.pem}}}}",
    "server: {listen: 'localhost:8080'}",
    "server: {listen: '[::1]:0', public_url: 'http://localhost:8080'}",
    "server: {listen: 'unix:data.sock'}",
    "metrics: {listen: '0.0.0.0:9091'}",
    "admin: {listen: '0.0.0.0:9090', credentials: [{role: viewer, secret_path: s}]}",
    "local: [{listen: '127.0.0.2:1', principal: 'nhi:team/planner@acme'}]",
    "store: {url: 'rediss://:secret@redis.acme.example:6380/1'}",
    "store: {url: 'unix:///run/valkey.sock'}",
    "store: {url: 'redis+sentinel://a,b:26380,[::1]:26379/mymaster/2', sentinel: {password_path: s}}",
    "store: {url: 'rediss+cluster://a:1,b', tls: {ca_path: c, cert_path: d, key_path: e}}",
    "store: {url: 'redis://h', username: u, password_path: p}",
    "store: {url: 'redis://h', on_failure: degraded, degraded_calls: 20}",
    "store: {url: 'redis://h', timeout: 10ms}",
    "store: {url: 'redis://h', timeout: 10}",
    "upstreams: {a-1: {mcp: {url: 'http://10.0.0.1/mcp'}, credential: {header: X-Api-Key, value_path: k}}}",
    "upstreams: {a: {mcp: {command: sh, args: [-c, 'exec x'], env: {A_B: c}, shared: true, idle_s: 10s}}}",
    "upstreams: {a: {mcp: {command: ./run, max_programs: 5, max_programs_per_caller: 1}}}",
    "agents: {}\nschedules: {}\nserver: {grpc: ~}",
    "upstreams: {a: {a2a: {url: 'http://h/'}}}\nschedules: {nightly: {agent: a, cron: '@daily', timezone: Asia/Tokyo}}",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_this_is_accepted(tmp_path: Path, text: str) -> None:
    load(tmp_path, text + "\n")


REFUSED = [
    ("server: {listen: '0.0.0.0:8080', tls: external}", "S101", "a listener beyond loopback needs public_url"),
    (f"server: {{listen: '0.0.0.0:8080', {PUBLIC}}}", "S102", "a listener beyond loopback needs tls"),
    (f"server: {{listen: 'gw.acme.example:8080', {PUBLIC}}}", "S102", "a listener beyond loopback needs tls"),
    (f"server: {{{PUBLIC}, tls: internal}}", "Y104", '"internal" is not one of the known values'),
    ("server: {public_url: 'http://gw.acme.example'}", "Y104", "callers beyond this machine need https"),
    ("server: {public_url: 'https://me:pw@gw.acme.example'}", "Y104", "a URL must not carry credentials"),
    ("server: {listen: ':8080'}", "Y104", "the host is missing"),
    ("server: {listen: '127.0.0.1'}", "Y104", "this is no address"),
    ("server: {listen: '127.0.0.1:70000'}", "Y104", "a port is at most 65535"),
    ("server: {listen: '127.0.0.300:80'}", "Y104", '"127.0.0.300" is no host'),
    ("server: {listen: '::1:80'}", "Y104", "this is no address"),
    ("server: {listen: 8080}", "Y103", "expected an address"),
    ("server: {allowed_hosts: ['*.acme.example']}", "Y104", "this is no host name"),
    (
        "server: {allowed_origins: ['https://a.example/x']}",
        "Y104",
        "an origin is scheme://host[:port] and nothing more",
    ),
    ("server: {header_timeout_s: 10 s}", "Y103", "this is no duration"),
    ("server: {header_timeout_s: 0}", "Y104", "must be more than 0.0"),
    ("server: {max_body_bytes: 1.5}", "Y103", "expected a whole number, found a number"),
    ("server: {tls: {cert_path: c}, public_url: 'https://x'}", "Y102", 'the key "key_path" is missing'),
    (f"local: [{{listen: 'unix:/{'x' * 120}', principal: nhi:p}}]", "Y104", "a socket path holds at most 107 bytes"),
    ("local: [{listen: '0.0.0.0:1', principal: nhi:p}]", "S103", "a local listener must not leave this machine"),
    ("local: [{listen: 'gateway:1', principal: nhi:p}]", "S103", "a local listener must not leave this machine"),
    ("local: [{listen: '127.0.0.1:1', principal: user:alice}]", "Y104", "this is no NHI"),
    ("local: [{listen: '127.0.0.1:1', principal: 'nhi:*'}]", "Y104", "this is no NHI"),
    ("local: [{listen: '127.0.0.1:1', principal: 'nhi:a b'}]", "Y104", "this is no NHI"),
    (
        "local: [{listen: '127.0.0.1:8080', principal: nhi:p}]",
        "S115",
        "127.0.0.1:8080 is already taken by server.listen",
    ),
    ("server: {grpc: '0.0.0.0:8081', tls: external}", "S101", "a listener beyond loopback needs public_url"),
    (f"server: {{grpc: '0.0.0.0:8081', {PUBLIC}}}", "S102", "a listener beyond loopback needs tls"),
    ("server: {grpc: 'unix:/run/grpc.sock'}", "S127", "a gRPC address is a host and a port"),
    ("server: {grpc_url: 'https://gw.acme.example'}", "S127", "grpc_url is for a gRPC listener, and there is none"),
    ("server: {grpc: '127.0.0.1:1', grpc_url: 'ftp://gw:1'}", "S127", "this is no address of gRPC"),
    ("server: {grpc: '127.0.0.1:1', grpc_url: 'https://gw/a2a'}", "S127", "this is no address of gRPC"),
    ("server: {grpc: '127.0.0.1:1', grpc_url: 'https://{agent}gw'}", "S127", "this is no address of gRPC"),
    (
        "server: {grpc: '127.0.0.1:1', grpc_url: 'gw'}",
        "S127",
        "an address of gRPC is a host and a port, and nothing more",
    ),
    ("admin: {listen: '0.0.0.0:9090'}", "S104", "an admin listener beyond loopback needs credentials"),
    ("store: {url: 'mysql://x'}", "Y104", "this is no store"),
    ("store: {url: 'redis:///0'}", "Y104", "the host is missing"),
    ("audit: {sink: stdout, path: a.jsonl}", "S150", "there is no file with sink: stdout"),
    ("audit: {clear_arguments: {'tool:a/b': [/api_key]}}", "S150", "api_key sounds like a credential"),
    ("audit: {clear_arguments: {'tool:a/b': [/x/accessToken]}}", "S150", "accessToken sounds like a credential"),
    ("audit: {clear_arguments: {'tool:a/*': [/repo]}}", "Y104", "this is no exact tool or prompt"),
    ("audit: {clear_arguments: {'tool:a/b': [/items/*]}}", "Y104", "this is no JSON Pointer"),
    ("audit: {sink: redis, durability: disk}", "S150", "nobody knows of a disk behind redis"),
    ("audit: {sink: redis}", "S150", "there is no Redis to keep evidence in"),
    ("audit: {also: redis, redis: {store: {url: 'memory://'}}}", "S150", "there is no Redis to keep evidence in"),
    ("audit: {sink: otlp}", "S150", "nobody says where the receiver is"),
    ("audit: {sink: stdout, also: redis}", "S150", "only a file has copies"),
    ("audit: {sink: otlp, rotate: {every_s: 1d}, otlp: {url: 'http://a/b'}}", "S150", "only a file is set aside"),
    ("audit: {also: stdout, checkpoints: {to: [stdout]}}", "S150", "standard output is the evidence's alone"),
    ("audit: {redis: {stream: s}}", "S150", "nothing goes there"),
    ("audit: {checkpoints: {to: [store]}}", "S150", "there is no store to publish to"),
    ("audit: {sink: stdout, checkpoints: {to: [stdout]}}", "S150", "standard output is the evidence's alone"),
    ("audit: {sink: stdout, rotate: {keep: 3}}", "S150", "only a file is set aside"),
    ("audit: {otlp: {url: 'http://127.0.0.1:4318/v1/logs'}}", "S150", "nothing goes there"),
    ("audit: {sink: otlp, otlp: {url: 'http://127.0.0.1:4318'}}", "Y104", "the path is missing"),
    (
        "audit: {sink: otlp, otlp: {url: 'http://otel:4318/v1/logs', header_paths: {X-Key: k}}}",
        "S150",
        "what these headers hold would cross the network in the clear",
    ),
    (
        "audit: {sink: otlp, otlp: {url: 'https://otel:4318/v1/logs', header_paths: {Content-Type: k}}}",
        "S150",
        "Content-Type is ours to write",
    ),
    ("store: {url: 'redis://h,i'}", "Y104", "one node, or say what the nodes are"),
    ("store: {url: 'redis://h:0'}", "Y104", "this is no port"),
    ("store: {url: 'redis://h/x'}", "Y104", "this is no database's number"),
    ("store: {url: 'redis://:hush@h?socket_timeout=1'}", "Y104", "this URL takes no query"),
    ("store: {url: 'unix:///s?nonsense=1'}", "Y104", "this query says nothing to a store"),
    ("store: {url: 'redis+sentinel://h'}", "Y104", "the service's name is missing"),
    ("store: {url: 'redis+sentinel://h,/s'}", "Y104", "the host is missing"),
    ("store: {url: 'redis+cluster://h/3'}", "Y104", "a Cluster has one database, 0"),
    ("store: {url: 'redis://h', on_failure: degraded}", "S136", "nobody says how many calls that would be"),
    ("store: {on_failure: degraded, degraded_calls: 1}", "S136", "the in-process store is never out"),
    ("store: {url: 'redis://h', degraded_calls: 1}", "S136", "this is read with on_failure: degraded only"),
    ("store: {url: 'redis://h', tls: {ca_path: x}}", "S136", "this store's URL says no TLS"),
    ("store: {url: 'rediss://h', tls: {cert_path: x}}", "Y104", "a certificate and its key belong together"),
    ("store: {url: 'redis://h', sentinel: {password_path: x}}", "S136", "there are no Sentinels in this store's URL"),
    ("store: {url: 'redis://u:p@h', password_path: x}", "S136", "the URL holds a password too"),
    ("store: {url: 'redis://h', username: u}", "S136", "a user needs a password"),
    ("store: {url: 'redis://h', timeout: 9ms}", "Y104", "must be at least 0.01"),
    ("store: {url: 'redis://h', timeout: 11s}", "Y104", "must be at most 10.0"),
    ("upstreams: {git_hub: {mcp: {url: 'http://x'}}}", "Y104", "this is no name"),
    ("upstreams: {a--b: {mcp: {url: 'http://x'}}}", "Y104", "this is no name"),
    ("upstreams: {a: {}}", "Y102", 'the key "mcp" or "a2a" is missing'),
    ("upstreams: {a: {a2a: {url: 'http://x'}, mcp: {url: 'http://y'}}}", "Y102", "it speaks MCP or A2A, not both"),
    ("upstreams: {a: {a2a: {}}}", "Y102", 'the key "url" is missing'),
    ("upstreams: {a: {a2a: {url: 'ftp://x'}}}", "Y104", "this is no URL of a known scheme"),
    ("upstreams: {a: {a2a: {url: 'http://x', binding: grpc}}}", "S127", "this address does not speak grpc"),
    ("upstreams: {a: {a2a: {url: 'grpc://x:1/y'}}}", "S127", "a gRPC address is a host and a port"),
    (
        "upstreams: {a: {a2a: {url: 'http://x', headers: {A2A-Version: '1.0'}}}}",
        "S114",
        "A2A-Version is written by the sidecar itself",
    ),
    ("upstreams: {a: {a2a: {url: 'http://x'}, pins: warn}}", "S127", "pins is for MCP servers"),
    ("upstreams: {a: {mcp: {}}}", "Y102", 'the key "url" is missing'),
    ("upstreams: {a: {mcp: {url: 'http://x', command: sh}}}", "Y102", "a server has a url or a command, not both"),
    ("upstreams: {a: {mcp: {url: 'http://x', args: [y1]}}}", "Y104", "args is for a server that is a program"),
    ("upstreams: {a: {mcp: {url: 'http://x', shared: true}}}", "Y104", "shared is for a server that is a program"),
    ("upstreams: {a: {mcp: {command: sh, max_connections: 3}}}", "Y104", "max_connections is for a server at a url"),
    ("upstreams: {a: {mcp: {command: sh, env: {'A=B': c}}}}", "Y104", "this is no name of a variable"),
    ('upstreams: {a: {mcp: {command: sh, args: ["a\\0"]}}}', "Y104", "no program can be given a NUL character"),
    ("upstreams: {a: {mcp: {command: sh}, credential: {bearer_path: b}}}", "S113", "a program is shown no credential"),
    ("upstreams: {a: {mcp: {command: ''}}}", "Y104", "the command is empty"),
    ("upstreams: {a: {mcp: {command: sh, env: {A: '${NOT_SET}'}}}}", "S204", "the variable NOT_SET is not set"),
    ("upstreams: {a: {mcp: {url: 'ftp://x'}}}", "Y104", "this is no URL of a known scheme"),
    ("upstreams: {a: {mcp: {url: 'http://u:p@x/'}}}", "Y104", "a URL must not carry credentials"),
    ("upstreams: {a: {mcp: {url: 'http://x/#y'}}}", "Y104", "a URL must not have a fragment here"),
    ("upstreams: {a: {mcp: {url: 'http://x/ y'}}}", "Y104", "this is no URL"),
    (
        "upstreams: {a: {mcp: {url: 'http://x'}, credential: {}}}",
        "S113",
        "a credential is of one kind, and this is nothing",
    ),
    (
        "upstreams: {a: {mcp: {url: 'http://x'}, credential: {header: X-Key}}}",
        "Y102",
        'the key "value_path" is missing',
    ),
    (
        'upstreams: {a: {mcp: {url: "http://a/mcp", headers: {Mcp-Method: x}}}}\n',
        "S114",
        "Mcp-Method is written by the sidecar itself",
    ),
    (
        'upstreams: {a: {mcp: {url: "http://a/mcp", headers: {authorization: x}}}}\n',
        "S114",
        "authorization is a credential's header",
    ),
    (
        'upstreams: {a: {a2a: {url: "grpc://a:1", card_url: "http://a/card", headers: {X-A-Bin: b}}}}\n',
        "S114",
        "X-A-Bin holds bytes in gRPC, and no text",
    ),
    (
        'upstreams: {a: {mcp: {url: "http://a/mcp", headers: {X-A: b, x-a: c}}}}\n',
        "S114",
        "x-a is there more than once",
    ),
    (
        'upstreams: {a: {mcp: {url: "http://a/mcp", headers: {X-A: "a\\nb"}}}}\n',
        "Y104",
        "this is no header value",
    ),
    (
        "upstreams: {a: {mcp: {url: 'http://x'}, credential: {header: Host, value_path: v}}}",
        "S114",
        "Host is written by the sidecar itself",
    ),
    ("upstreams: {a: {mcp: {url: 'http://x'}, scopes: ['a b']}}", "Y104", "this is no scope"),
    ("data: ~/x", "Y104", "~ is not expanded"),
    ("data: ''", "Y104", "the path is empty"),
]


@pytest.mark.parametrize(("text", "code", "message"), REFUSED)
def test_this_is_refused(tmp_path: Path, text: str, code: str, message: str) -> None:
    assert fault_in(tmp_path, text + "\n") == (code, message)


def test_tls_is_files_or_a_word(tmp_path: Path) -> None:
    server = load(tmp_path, f"server: {{{PUBLIC}/, tls: {{cert_path: c.pem, key_path: k.pem}}}}\n").server
    assert server.tls == TlsFiles(cert_path=tmp_path / "c.pem", key_path=tmp_path / "k.pem")
    assert server.public_url == "https://gw.acme.example"


# Issuers


def issuers(*entries: str) -> str:
    return "identity:\n  issuers:\n" + "".join(f"    - {{{entry}}}\n" for entry in entries)


ACME = "issuer: 'https://idp.acme.example'"
KEYS = "jwks_path: keys.json"

ISSUERS_REFUSED = [
    ([f"{ACME}"], "S107", "an issuer needs exactly one of jwks_url and jwks_path"),
    ([f"{ACME}, {KEYS}, jwks_url: 'https://x/k'"], "S107", "an issuer needs exactly one of jwks_url and jwks_path"),
    ([f"{ACME}, jwks_url: 'http://idp.acme.example/keys'"], "Y104", "keys may be fetched over https only"),
    ([f"{ACME}, {KEYS}, algorithms: [HS256]"], "S106", "HS256 is not accepted"),
    ([f"{ACME}, {KEYS}, algorithms: [none]"], "S106", "none is not accepted"),
    ([f"{ACME}, {KEYS}, algorithms: []"], "Y104", "must have at least 1 entry"),
    ([f"{ACME}, {KEYS}, kinds: [role]"], "Y104", '"role" is not one of the known values'),
    ([f"{ACME}, {KEYS}, actor_from: azp"], "S108", "actor_from without clients refuses every token"),
    ([f"{ACME}, {KEYS}, clients: {{vscode: direct}}"], "S108", "clients are read only with actor_from"),
    ([f"{ACME}, {KEYS}, actor_from: act, clients: {{a: direct}}"], "S108", "clients are read only with actor_from"),
    ([f"{ACME}, {KEYS}, actor_from: azp, clients: {{a: user:b}}"], "Y104", "a client is direct or an NHI"),
    ([f"{ACME}, {KEYS}, actor_from: azp, clients: {{a: nhi:b}}"], "S109", "this issuer may name no NHI"),
    ([f"{ACME}, {KEYS}, namespace: Corp"], "Y104", "this is no name"),
    ([f"{ACME}, {KEYS}, roles_from: {{namespace: corp}}"], "Y102", 'the key "claim" is missing'),
    ([f"{ACME}, {KEYS}", f"issuer: b, {KEYS}"], "S111", 'the key "namespace" is missing'),
    (
        [
            f"{ACME}, {KEYS}, namespace: a",
            f"issuer: b, {KEYS}, namespace: b",
            f"issuer: c, {KEYS}",
            f"issuer: d, {KEYS}",
        ],
        "S111",
        'the key "namespace" is missing',
    ),
]


@pytest.mark.parametrize(("entries", "code", "message"), ISSUERS_REFUSED)
def test_an_issuer_that_could_be_abused_is_refused(tmp_path: Path, entries: list[str], code: str, message: str) -> None:
    assert fault_in(tmp_path, issuers(*entries)) == (code, message)


def test_two_issuers_share_neither_name_nor_namespace(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        load(tmp_path, issuers(f"{ACME}, {KEYS}, namespace: a", f"{ACME}, {KEYS}, namespace: a"))
    assert [fault.code for fault in error.value.faults] == ["S110", "S111", "S110", "S111"]


PRESET_KEYS = [
    ("keycloak", "https://k.example/realms/acme", "https://k.example/realms/acme/protocol/openid-connect/certs"),
    (
        "entra",
        "https://login.microsoftonline.com/tid/v2.0",
        "https://login.microsoftonline.com/tid/discovery/v2.0/keys",
    ),
    ("okta", "https://acme.okta.com/oauth2/default", "https://acme.okta.com/oauth2/default/v1/keys"),
]


@pytest.mark.parametrize(("preset", "issuer", "keys"), PRESET_KEYS)
def test_a_preset_knows_where_the_keys_are_and_what_is_written_wins(
    tmp_path: Path, preset: str, issuer: str, keys: str
) -> None:
    filled, written, from_file = load(
        tmp_path,
        issuers(
            f"issuer: '{issuer}', preset: {preset}, roles_from: {{namespace: corp}}",
            f"issuer: b, preset: {preset}, namespace: b, "
            "jwks_url: 'https://x/k', roles_from: {claim: c, namespace: d}",
            f"issuer: c, preset: {preset}, namespace: c, jwks_path: k.json",
        ),
    ).identity.issuers
    assert filled.jwks_url == keys
    assert filled.roles_from is not None and filled.roles_from.claim in {"realm_access.roles", "roles", "groups"}
    assert written.jwks_url == "https://x/k"
    assert written.roles_from is not None and written.roles_from.claim == "c"
    assert (from_file.jwks_url, from_file.jwks_path) == (None, tmp_path / "k.json")


def test_a_preset_over_plain_http_fetches_no_keys(tmp_path: Path) -> None:
    code, _ = fault_in(tmp_path, issuers("issuer: 'http://idp.acme.example', preset: keycloak"))
    assert code == "Y104"


def test_typ_is_one_word_or_several_and_none_means_absent(tmp_path: Path) -> None:
    one, several = load(
        tmp_path, issuers(f"{ACME}, {KEYS}, typ: JWT", f"issuer: b, {KEYS}, namespace: b, typ: [at+jwt, none]")
    ).identity.issuers
    assert (one.typ, several.typ) == (("JWT",), ("at+jwt", ""))


# Files


def test_files_that_are_named_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(
        "version: 1\nidentity: {api_keys_path: keys.yaml}\n"
        "upstreams: {a: {mcp: {url: 'http://x'}, credential: {bearer_path: token}}}\n"
    )
    (tmp_path / "models").mkdir()
    with pytest.raises(SettingsError) as error:
        load_settings(path, {})
    assert [(fault.line, fault.code, fault.message) for fault in error.value.faults] == [
        (1, "S116", f"{tmp_path}/policies is no folder"),
        (2, "S116", f"{tmp_path}/keys.yaml is no file"),
        (3, "S116", f"{tmp_path}/token is no file"),
    ]


def test_a_weak_admin_secret_stops_the_start_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("version: 1\nadmin: {credentials: [{role: viewer, secret_path: admin.key}]}\n")
    (tmp_path / "admin.key").write_text("changeme\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "policies").mkdir()
    with pytest.raises(SettingsError) as error:
        load_settings(path, {})
    (fault,) = error.value.faults
    assert (fault.line, fault.column, fault.code) == (2, 51, "S121")
    assert "changeme" not in str(fault)
