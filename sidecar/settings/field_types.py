"""Field types of the settings. Relative paths start at the file's folder, `folder` in the validation context."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import AfterValidator

from sidecar.settings.addresses import (
    ListenAddress,
    UnixAddress,
    is_destination,
    is_host_name,
    is_loopback_host,
    is_target,
    parse_address,
)
from sidecar.settings.validation_errors import Finding, reject, reject_any


class Section(BaseModel):
    """A section of sidecar.yaml: immutable, without unknown keys or type conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    def _faults(self) -> Iterable[Finding]:
        """Returns what is wrong with the section as a whole."""
        return ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        reject_any(self._faults())
        return self


T = TypeVar("T")
Many = Annotated[tuple[T, ...], Field(strict=False)]
"""A list in the file, a tuple in code."""

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]+)(KiB|MiB|GiB)")
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def seconds_from(value: object) -> object:
    """Parses a number of seconds, or `500ms`, `30s`, `5m`, `1h`, `2d`, as a float. Leaves other values to pydantic."""
    if isinstance(value, str):
        if not (found := _DURATION.fullmatch(value)):
            reject("this is not a duration", "Y103", "write seconds as a number, or 500ms, 30s, 5m, 1h, 2d")
        return float(found[1]) * _SECONDS[found[2]]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def bytes_from(value: object) -> object:
    """Parses a number of bytes, or `64KiB`, `1MiB`, `1GiB`, as an int. Leaves other values to pydantic."""
    if isinstance(value, str):
        if not (found := _SIZE.fullmatch(value)):
            reject("this is not a size", "Y103", "write bytes as a number, or 64KiB, 1MiB, 1GiB")
        return int(found[1]) * _BYTES[found[2]]
    return value


Seconds = Annotated[
    float,
    Field(gt=0, le=86400 * 366, allow_inf_nan=False),
    BeforeValidator(seconds_from),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": f"^{_DURATION.pattern}$"}]}
    ),
]
Bytes = Annotated[
    int,
    Field(ge=1024, le=2**30),
    BeforeValidator(bytes_from),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1024}, {"type": "string", "pattern": f"^{_SIZE.pattern}$"}]}
    ),
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]

MAX_PER_SECOND = 10_000  # above it, rounding to whole microseconds is off by more than 1 %
MAX_REFILL_S = 86_400  # a burst that takes longer to refill is a quota; also keeps Lua's numbers exact

PerSecond = Annotated[float, Field(gt=0, le=MAX_PER_SECOND, allow_inf_nan=False)]
Quota = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""Calls per day; 0 means unlimited, as in the original data models."""


def interval_us(per_second: float) -> int:
    """The time between two calls in whole microseconds, rounded up so that the rate is never exceeded."""
    return math.ceil(1_000_000 / per_second)


def burst_of(per_second: float, burst: int | None) -> int:
    """The burst in calls; by default the calls of one second."""
    return burst or max(1, math.ceil(per_second))


def rate_faults(per_second: float | None, burst: int | None) -> Iterator[Finding]:
    if per_second is None:
        if burst is not None:
            yield Finding("a burst needs requests_per_second", "Y102", at=("burst",), on_key=True)
    elif burst_of(per_second, burst) * interval_us(per_second) > MAX_REFILL_S * 1_000_000:
        yield Finding("this burst would take more than a day to refill", hint="use daily_quota")


def _folder(info: ValidationInfo) -> Path:
    context = info.context if isinstance(info.context, dict) else {}
    return Path(context.get("folder", "."))


def _path_from(value: object, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path):
        reject("expected a path", "Y103")
    if not str(value):
        reject("the path is empty")
    if any(character < " " for character in str(value)):
        reject("a path cannot contain control characters")
    if str(value).startswith("~"):
        reject("~ is not expanded", hint="write the whole path")
    return _folder(info) / value


def _listen_from(value: object, info: ValidationInfo) -> object:
    if isinstance(value, ListenAddress | UnixAddress):
        return value
    if not isinstance(value, str):
        reject("expected an address", "Y103", "write host:port such as 127.0.0.1:8080")
    return parse_address(value, _folder(info))


PathField = Annotated[
    Path, BeforeValidator(_path_from), PlainSerializer(str), WithJsonSchema({"type": "string", "minLength": 1})
]
"""A path, absolute or relative to the file's folder."""

Listen = Annotated[
    ListenAddress | UnixAddress,
    BeforeValidator(_listen_from),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["127.0.0.1:8080", "unix:/run/sidecar/planner.sock"]}),
]


def _command_from(value: object, info: ValidationInfo) -> object:
    """Parses a command. A name without a slash remains as it is, to be found on PATH. Any other becomes an absolute
    path, because programs start in another folder. Links are not resolved: a virtual environment's Python finds its
    files through them."""
    if value == "":
        reject("the command is empty")
    if isinstance(value, str) and "/" in value:
        return str(_path_from(value, info).absolute())
    return value


def _argument(text: str) -> str:
    if "\0" in text:
        reject("a program cannot receive a NUL character")
    return text


Argument = Annotated[str, Field(max_length=128 * 1024), AfterValidator(_argument)]
"""A program argument; the kernel allows 128 KiB each."""

Command = Annotated[Argument, BeforeValidator(_command_from)]


def split_url(text: str, *schemes: str) -> SplitResult:
    """Parses an ASCII URL with one of the schemes and a host, without user info, fragment and dot segments. Rejects all
    other texts."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        reject("this is not a URL")
    if parts.scheme not in schemes:
        reject(
            "the scheme of this URL is not supported",
            hint=f"it must begin with {' or '.join(f'{s}://' for s in schemes)}",
        )
    plain = text.isascii() and not any(c <= " " or c == "\x7f" for c in text) and is_target(parts.path, parts.query)
    if port == 0 or not plain or not is_destination(parts.hostname or ""):
        reject("this is not a URL", hint="write scheme://host[:port]/path in plain ASCII")
    if "@" in parts.netloc:
        reject("a URL must not carry credentials", hint="put them into a file and name it under credential")
    if "#" in text:
        reject("a URL must not have a fragment here")
    return parts


def url_of(*schemes: str) -> AfterValidator:
    return AfterValidator(lambda text: split_url(text, *schemes) and text)


def https_url(message: str, hint: str = "use https://") -> AfterValidator:
    """The check that a URL is https, or http on this machine. In `hint`, `{rest}` is the host, the port and the
    path."""

    def check(text: str) -> str:
        parts = split_url(text, "https", "http")
        if parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            reject(message, hint=hint.format(rest=f"{parts.netloc}{parts.path}"))
        return text

    return AfterValidator(check)


def _public_url(text: str) -> str:
    if "?" in text:
        reject("the public URL must not have a query")
    return text.rstrip("/")


def _origin(text: str) -> str:
    parts = split_url(text, "https", "http")
    if parts.path or "?" in text:
        reject("an origin has the form scheme://host[:port]", hint=f"write {parts.scheme}://{parts.netloc}")
    return text.lower()


def _host(text: str) -> str:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    name = host if colon and port.isdigit() else text
    bracketed = name.startswith("[") and name.endswith("]")
    if not (bracketed or is_host_name(name)):
        reject("this is not a host name", hint="write the Host header's value: gw.acme.example or gw.acme.example:8443")
    return text.lower()


AGENT_PLACE: Final = "{agent}"


def _grpc_url(text: str) -> str:
    """`https://host:port`, `http://host:port`, or `host:port`. The first label of the host may be `{agent}`."""
    scheme, slashes, place = text.rpartition("://")
    named = place.replace(f"{AGENT_PLACE}.", "agent.", 1) if place.startswith(AGENT_PLACE) else place
    if scheme.lower() not in (("http", "https") if slashes else ("",)) or not is_host_name(named.partition(":")[0]):
        hint = (
            "write, for example, https://grpc.acme.example, https://{agent}.grpc.acme.example or grpc.acme.example:443"
        )
        reject("this is not a gRPC address", "S127", hint)
    if not re.fullmatch(r"[^/?#:]*(:[0-9]{1,5})?", named) or (not slashes and ":" not in named):
        reject("a gRPC address consists of a host and a port", "S127", "write host:port")
    return text


HttpUrl = Annotated[str, url_of("https", "http")]
KeyUrl = Annotated[str, https_url("a key set needs an https URL", "use https://, or jwks_path with a file")]
PublicUrl = Annotated[
    str, https_url("beyond this machine, callers need https", "write https://{rest}"), AfterValidator(_public_url)
]
GrpcUrl = Annotated[str, AfterValidator(_grpc_url)]
"""The address of gRPC in agent cards."""
Origin = Annotated[str, AfterValidator(_origin)]
Host = Annotated[str, AfterValidator(_host)]


def matching(pattern: str, what: str, hint: str) -> Callable[[str], str]:
    """Returns a check that the pattern matches the whole text."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            reject(f"this is not a valid {what}", hint=hint)
        return text

    return check


def named(pattern: str, what: str, hint: str) -> AfterValidator:
    """As `matching`, for a field's annotation."""
    return AfterValidator(matching(pattern, what, hint))


def listed(value: object) -> object:
    """Returns a single string as a list of it, and any other value unchanged."""
    return [value] if isinstance(value, str) else value


SLUG = r"[a-z0-9]+(-[a-z0-9]+)*"
_ID_CHARACTERS = r"!#-&(-)+\--{}~"  # printable ASCII without blanks, quotes, commas, | and *
PRINCIPAL_ID = rf"[{_ID_CHARACTERS}]{{1,256}}"
PRINCIPAL_ID_PATTERN = rf"[*{_ID_CHARACTERS}]{{1,256}}"
_NHI = re.compile(f"nhi:{PRINCIPAL_ID}")
_CALLER = re.compile(f"(?:nhi|user):{PRINCIPAL_ID}")

Slug = Annotated[
    str,
    Field(json_schema_extra={"pattern": f"^{SLUG}$"}, max_length=64),
    named(SLUG, "name", "lower-case letters and digits, parts joined by single hyphens: my-server"),
]
NhiName = Annotated[
    str,
    Field(json_schema_extra={"pattern": "^nhi:"}),
    named(f"nhi:{PRINCIPAL_ID}", "NHI", "write nhi:<id>, such as nhi:planner"),
]
UserName = Annotated[
    str,
    Field(json_schema_extra={"pattern": "^user:"}),
    named(f"user:{PRINCIPAL_ID}", "user", "write user:<id>, such as user:alice"),
]
HeaderName = Annotated[str, Field(max_length=128), named(r"[A-Za-z0-9_.-]+", "header name", "such as X-Api-Key")]
HeaderValue = Annotated[
    str, Field(max_length=8 * 1024), named(r"[!-~]+(?:[ \t]+[!-~]+)*", "header value", "one line of printable ASCII")
]
Scope = Annotated[
    str,  # RFC 6749, 3.3: scope-token
    Field(max_length=256),
    named(r"[\x21\x23-\x5b\x5d-\x7e]+", "scope", "write one scope per entry, without blanks"),
]
VariableName = Annotated[
    str,
    Field(max_length=256),
    named(r"[A-Za-z_][A-Za-z0-9_.-]*", "name of a variable", "letters, digits and underscores: API_KEY"),
]
ClaimName = Annotated[
    str, Field(max_length=256), named(r"[\x21-\x7e]+", "claim name", "such as groups or realm_access.roles")
]
Word = Annotated[str, Field(max_length=512), named(r"[\x21-\x7e]+", "single word", "printable ASCII without blanks")]


def is_caller(name: str) -> bool:
    """Whether this names exactly one principal that can call, and that can be disabled."""
    return _CALLER.fullmatch(name) is not None


def is_nhi(name: str) -> bool:
    return _NHI.fullmatch(name) is not None
