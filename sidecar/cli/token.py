"""`sidecar token`: creates, lists and revokes keys, tokens and secrets.

Signing keys and tokens made here are for development: the holder of the private key can act as any user.
"""

import json
import secrets
import time
from pathlib import Path
from typing import Any

import click

from sidecar.cli.command import FILE, FOLDER, config_option_for, json_option, print_json, print_result, settings_in
from sidecar.cli.lazy_group import Group
from sidecar.cli.terminal import print_table
from sidecar.cli.timestamps import Duration
from sidecar.http.client.origin import parse_strictly
from sidecar.http.signing_keys import ALGORITHMS, SigningKey, claims_for, generate, read_signing_key
from sidecar.identity.api_keys import KeyEntry
from sidecar.identity.key_files import add_key, ensure_pepper, keys_in, make_key, remove_key, write_secret
from sidecar.settings.timestamps import seconds_of
from sidecar.tasks.webhooks.signature import load_or_make_callback_key

KEY_FILE, JWKS_FILE = "signing-key.pem", "jwks.json"
_config = config_option_for("Names the files.")
_keys = click.option("--keys", "keys_path", type=FILE, help="keys.yaml; by default the configured one.")


@click.group(cls=Group)
def token() -> None:
    """Keys and tokens: API keys, and signing keys and tokens for development."""


@token.command()
@click.option("--out", type=FOLDER, default=".", help="Folder for the two files.")
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default="ES256", show_default=True, help="The algorithm of the key."
)
@json_option
def keygen(out: Path, algorithm: str, as_json: bool) -> None:
    """Create a signing key (signing-key.pem) and its public key set (jwks.json, for `jwks_path`)."""
    key = generate(algorithm)
    out.mkdir(parents=True, exist_ok=True)
    try:
        write_secret(out / KEY_FILE, key.pem())
    except FileExistsError:
        raise click.ClickException(f"{out / KEY_FILE} exists; a key is never overwritten") from None
    (out / JWKS_FILE).write_text(key.jwks(), encoding="ascii")
    made = {"key": str(out / KEY_FILE), "jwks": str(out / JWKS_FILE), "kid": key.kid, "algorithm": algorithm}
    print_result(
        made, f"{made['key']}  private, mode 0600\n{made['jwks']}  public, {algorithm}, kid {key.kid}", as_json
    )


@token.command()
@click.option(
    "--key", "key_path", type=FILE, default=KEY_FILE, show_default=True, help="The signing key, from `token keygen`."
)
@click.option("--issuer", default="https://issuer.dev.example", show_default=True, help="The issuer, as configured.")
@click.option(
    "--sub", "subject", required=True, help="The subject, as the issuer's kinds require: alice, or nhi:planner."
)
@click.option(
    "--aud",
    "audiences",
    multiple=True,
    required=True,
    help="The called address (<public_url>/mcp/<server>), or nhi:<name>.",
)
@click.option("--act", "actors", multiple=True, help="An actor; repeat the option in the order of the chain.")
@click.option("--scope", "scopes", multiple=True)
@click.option("--claim", "claims", multiple=True, metavar="K=V", help="Another claim; V is JSON or a string.")
@click.option("--ttl", type=Duration(), default="1h", show_default=True, help="How long the token is valid.")
@click.option("--typ", default="at+jwt", show_default=True, help="The type in the header of the token.")
@json_option
def mint(key_path: Path, claims: tuple[str, ...], ttl: float, typ: str, as_json: bool, **about: Any) -> None:
    """Sign an access token for development."""
    key = signing_key_in(key_path)
    values = {**claims_for(now=time.time(), ttl_s=ttl, **about), **dict(_claim(text) for text in claims)}
    signed = key.sign(values, typ)
    print_result({"token": signed, "claims": values}, signed, as_json)


@token.command("callback-secret")
@click.argument("url")
@_config
@json_option
def callback_secret(url: str, config: Path, as_json: bool) -> None:
    """Print the secret with which the receiver at URL verifies callbacks (Standard Webhooks)."""
    try:
        receiver = parse_strictly(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="URL") from None
    key = load_or_make_callback_key(settings_in(config).callback_key_path)
    secret = key.told_to(receiver)
    place = f"{receiver.scheme}://{receiver.host}:{receiver.port}"
    print_result({"receiver": place, "secret": secret}, secret, as_json)


@token.command("api-key")
@click.option("--principal", required=True, help="nhi:<id> or user:<id>.")
@click.option("--expires", type=Duration(), default="90d", show_default=True, help="Lifetime, from now.")
@click.option("--never-expires", is_flag=True, help="Create a key that does not expire.")
@click.option("--scope", "scopes", multiple=True)
@_keys
@click.option(
    "--pepper", type=FILE, help="The pepper; by default the configured file, which is created if it is missing."
)
@_config
@json_option
def api_key(
    principal: str,
    expires: float,
    never_expires: bool,
    scopes: tuple[str, ...],
    keys_path: Path | None,
    pepper: Path | None,
    config: Path,
    as_json: bool,
) -> None:
    """Create an API key and print it. It is shown only once; keys.yaml contains an HMAC of it."""
    keys_path = keys_path or _configured_keys(config)
    pepper = pepper or settings_in(config).api_keys_pepper_path
    now = time.time()
    try:
        text, entry = make_key(
            principal,
            ensure_pepper(pepper, secrets.token_bytes),
            now=now,
            expires_at=None if never_expires else now + expires,
            scopes=scopes,
            random=secrets.token_bytes,
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--principal") from None
    add_key(keys_path, entry, now)
    shown = {name: value for name, value in entry.model_dump().items() if name != "hash" and value}
    print_result({"key": text, **shown}, text, as_json)
    click.echo(f"{entry.id} of {principal}, until {entry.expires_at or 'revoked'}; shown only now", err=True)


@token.command("list")
@_keys
@_config
@json_option
def list_(keys_path: Path | None, config: Path, as_json: bool) -> None:
    """Print the ids and owners of the API keys in keys.yaml, but not the keys."""
    keys_path = keys_path or _configured_keys(config)
    found = [_listed(entry, time.time()) for entry in keys_in(keys_path)]
    head = ("id", "principal", "state", "expires", "scopes")
    if as_json:
        print_json({"keys": found})
    elif found:
        print_table(head, [tuple(one[name] or "-" for name in head) for one in found])
    else:
        click.echo(f"{keys_path} has no keys")


@token.command()
@click.argument("key_id")
@_keys
@_config
@json_option
def revoke(key_id: str, keys_path: Path | None, config: Path, as_json: bool) -> None:
    """Remove an API key from keys.yaml. KEY_ID is the part between the underscores, or the whole key."""
    keys_path = keys_path or _configured_keys(config)
    key_id = key_id.removeprefix("sck_").partition("_")[0]
    if not remove_key(keys_path, key_id, time.time()):
        raise click.ClickException(f"{keys_path} has no key {key_id}")
    print_result({"revoked": key_id}, f"revoked {key_id}; a running sidecar applies it at its next reload", as_json)


def signing_key_in(path: Path) -> SigningKey:
    try:
        return read_signing_key(path)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--key") from None


def _claim(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter("write name=value", param_hint="--claim")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _configured_keys(config: Path) -> Path:
    path = settings_in(config).identity.api_keys_path
    if path is None:
        raise click.UsageError(f"{config} names no identity.api_keys_path; write it there, or give --keys")
    return path


def _listed(entry: KeyEntry, now_s: float) -> dict[str, Any]:
    end = seconds_of(entry.expires_at) if entry.expires_at else None
    state = "expired" if end is not None and end <= now_s else "valid"
    known = {"id": entry.id, "principal": entry.principal, "state": state}
    return {**known, "expires": entry.expires_at, "scopes": " ".join(entry.scopes)}
