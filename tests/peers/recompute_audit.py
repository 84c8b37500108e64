"""Does a second program, which shares nothing with ours, come to the same evidence?

Written from the documentation alone, with the standard library and `cryptography`:

    recompute_audit.py chain FILE...                checks every line's hash, its place and its predecessor
    recompute_audit.py head FILE KEYFILE            checks that FILE.head was made with the key, and names the last line
    recompute_audit.py checkpoints FILE JWKS        checks every checkpoint in FILE, a log or what was published
    recompute_audit.py args KEYFILE < CASES         args_hash of {namespace, action, object, arguments}, one JSON a line
"""

import base64
import hashlib
import hmac
import json
import math
import sys
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HASH_MEMBER_LENGTH = len(',"hash":"') + 64 + len('"}')


def check_chain(*paths):
    """(last sequence, last hash); raises ValueError with the line's number at the first thing that is not right."""
    seq, before = 0, "0" * 64
    lines = [line for path in paths for line in Path(path).read_bytes().split(b"\n")[:-1]]
    for number, line in enumerate(lines, 1):
        body, tail = line[:-HASH_MEMBER_LENGTH], line[-HASH_MEMBER_LENGTH:]
        digest = hashlib.sha256(body).hexdigest()
        if tail != f',"hash":"{digest}"}}'.encode():
            raise ValueError(f"line {number}: hash")
        record = json.loads(line)
        if record["seq"] != seq + 1:
            raise ValueError(f"line {number}: seq")
        if record["prev_hash"] != before:
            raise ValueError(f"line {number}: prev_hash")
        seq, before = record["seq"], digest
    return seq, before


def check_head(path, secret):
    """(sequence, hash) as the anchor says; ValueError where the key did not make it, or an append is under way."""
    name, version, seq, digest, next_seq, next_digest, key_id, mac = Path(f"{path}.head").read_text("ascii").split()
    if (name, version) != ("sidecar-audit-head", "1"):
        raise ValueError("not an anchor")
    if key_id != key_id_of(secret):
        raise ValueError("another key")
    ends = (b"%d" % int(seq), digest.encode(), b"%d" % int(next_seq), next_digest.encode())
    if mac != keyed(secret, b"sidecar/head/1", *ends):
        raise ValueError("mac")
    if (seq, digest) != (next_seq, next_digest):
        raise ValueError("an append is under way")
    return int(seq), digest


def check_checkpoints(path, jwks):
    """(how many, the newest sequence); ValueError where a signature is none, or of a key that is not in the set."""
    keys = {key["kid"]: decode(key["x"]) for key in json.loads(Path(jwks).read_bytes())["keys"]}
    count = newest = 0
    for line in Path(path).read_text("utf-8", "replace").splitlines():
        told = checkpoint_of(line)
        if told is None:
            continue
        public = keys.get(told["kid"])
        if public is None or kid_of(public) != told["kid"]:
            raise ValueError(f"checkpoint of {told['seq']}: key")
        parts = (str(told["seq"]), told["hash"], told["time"], told["kid"])
        message = b"".join(framed(part.encode()) for part in ("sidecar/checkpoint/1", *parts))
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(decode(told["signature"]), message)
        except InvalidSignature:
            raise ValueError(f"checkpoint of {told['seq']}: signature") from None
        count, newest = count + 1, max(newest, told["seq"])
    return count, newest


def checkpoint_of(line):
    """What a line says, of the log or of what was published."""
    at = line.find('{"sidecar-checkpoint":')
    if at >= 0:
        return json.loads(line[at:])["sidecar-checkpoint"]
    control = json.loads(line).get("control") if line.startswith('{"v":') else None
    return control if control and control["what"] == "checkpoint" else None


def kid_of(public):
    """RFC 7638."""
    text = f'{{"crv":"Ed25519","kty":"OKP","x":"{encode(public)}"}}'
    return encode(hashlib.sha256(text.encode()).digest())


def encode(raw):
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def args_hash(secret, namespace, action, object_, arguments):
    return keyed(
        secret, b"sidecar/args/1", namespace.encode(), action.encode(), object_.encode(), canonical(arguments).encode()
    )


def key_id_of(secret):
    return hashlib.sha256(b"sidecar/key-id/1" + secret).hexdigest()[:16]


def keyed(secret, *parts):
    mac = hmac.new(secret, digestmod="sha256")
    for part in parts:
        mac.update(framed(part))
    return mac.hexdigest()


def framed(part):
    return len(part).to_bytes(4, "big") + part


def canonical(value):
    """RFC 8785, but whole integers of up to 64 bits."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    keys = sorted(value, key=utf16_units)
    return "{" + ",".join(f"{string(key)}:{canonical(value[key])}" for key in keys) + "}"


def utf16_units(text):
    raw = text.encode("utf-16-be")
    return [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]


def string(text):
    """RFC 8785 3.2.2.2: the two-letter escapes, lower-case \\u00xx for other controls, everything else as it is."""
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return '"' + "".join(short.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text) + '"'


def number(value):
    """ECMA-262 Number::toString: the shortest digits that round back, in the notation of JavaScript."""
    if not math.isfinite(value):
        raise ValueError("not a JSON number")
    if value == 0:
        return "0"
    sign, value = ("-", -value) if value < 0 else ("", value)
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0)  # the decimal point stands after so many digits of whole + fraction
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    power = point - 1
    rest = "." + digits[1:] if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if power > 0 else '-'}{abs(power)}"


def main(command, path, *more):
    if command == "chain":
        print(*check_chain(path, *more))
    elif command == "checkpoints":
        print(*check_checkpoints(path, more[0]))
    elif command == "head":
        print(*check_head(path, read_key(more[0])))
    elif command == "args":
        secret = read_key(path)
        for line in sys.stdin:
            case = json.loads(line)
            print(args_hash(secret, case["namespace"], case["action"], case["object"], case["arguments"]))
    else:
        raise SystemExit(__doc__)


def read_key(path):
    return bytes.fromhex(Path(path).read_text("ascii").strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
