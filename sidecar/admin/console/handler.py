"""Answers requests to the console."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import orjson
from aiohttp import web

from sidecar.admin.admin_app import OperatorSecrets, name_of, person_of
from sidecar.admin.console import pages as _pages  # noqa: F401  # registers them
from sidecar.admin.console.access import ConsoleAccess, ConsoleUser, check_own_page, check_token
from sidecar.admin.console.addresses import BASE, FIRST, LOGIN, LOGOUT, OIDC_BEGIN, OIDC_FINISH, STATIC
from sidecar.admin.console.form_fields import FormFields
from sidecar.admin.console.oidc import LoginRefused, OidcLogins, plain_flow
from sidecar.admin.console.page_process import PageProcess
from sidecar.admin.console.registry import (
    ACTIONS,
    MAX_FORM_BYTES,
    PAGES,
    STREAMS,
    ConsoleAction,
    ConsolePage,
    ConsoleStream,
    StreamEvent,
    navigation,
)
from sidecar.admin.console.rendering import FOLDERS, Location, rendered, static_files
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest, Fragment, SharedResults, digest_of_view
from sidecar.admin.console.sessions import ConsoleSession, ConsoleSessions, LoginAttempts, digest_of, plain_session
from sidecar.admin.other_workers import FLOW_SOCKET, SESSION_SOCKET
from sidecar.admin.requests import HEADERS, answered, body_of, problem, refused
from sidecar.errors import Refusal
from sidecar.gateway.routing import Entrance, check_envelope, headers_of, origin_form
from sidecar.http.server.event_stream import OwnEventStream, open_stream
from sidecar.protocols.jsonrpc import malformed

if TYPE_CHECKING:
    from sidecar.admin.other_workers import OtherWorkers
    from sidecar.admin.routes import OperatorAction
    from sidecar.gateway.routing import Headers
    from sidecar.settings.console import ConsoleSettings

HTML: Final = "text/html; charset=utf-8"
FORM: Final = "application/x-www-form-urlencoded"
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# Browsers send the referrer only to the console. With `no-referrer`, they would send forms with `Origin: null`.
PAGE_HEADERS: Final[Mapping[str, str]] = {
    **HEADERS,
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATIC_HEADERS: Final = {**PAGE_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
OIDC: Final = "oidc"
"""The credential of sessions that began at the OpenID provider, in place of the digest of a key. It is always valid."""
MAX_STREAMS: Final = 100
MAX_RENDERED: Final = 64
LIVE: Final = "/live"
"""The end of the path of a page's stream."""
SEEN: Final = "seen"
"""The field that its query has in addition to those of the page: the digest of the data that the page shows."""
STREAM_S: Final = 1.0
"""The interval at which a stream checks whether its session is still valid."""
KEEP_ALIVE_S: Final = 15.0

log = logging.getLogger("sidecar.admin.console")


@dataclass(slots=True)
class Console:
    """The console of one process. `entrance` has the hosts and the origins that browsers may use, `url` is
    `console.url`. `streams` counts the open streams."""

    app: OperatorAction
    entrance: Entrance
    access: ConsoleAccess
    process: PageProcess
    oidc: OidcLogins | None = None
    others: OtherWorkers | None = None
    url: str = ""
    attempts: LoginAttempts = field(default_factory=lambda: LoginAttempts(time.monotonic))
    results: SharedResults = field(default_factory=SharedResults)
    streams: int = 0
    rendered: OrderedDict[Hashable, bytes] = field(default_factory=OrderedDict)
    """The last events that several streams send, by their keys."""

    @classmethod
    def open(
        cls,
        app: OperatorAction,
        settings: ConsoleSettings,
        entrance: Entrance,
        secrets: OperatorSecrets,
        port: int,
        others: OtherWorkers | None,
        process: PageProcess,
    ) -> Console:
        """The console with these settings. `entrance` is that of the admin listener, and `port` its port. Blocks,
        because it reads the static files."""
        url = settings.url or ""

        def holds(session: ConsoleSession) -> bool:
            """Whether the credential of the login still exists, with the same secret, name and role."""
            return session.credential == OIDC or any(
                digest_of(secret) == session.credential and (name_of(one), one.role) == (session.by, session.role)
                for secret, one in secrets().items()
            )

        hosts = entrance.hosts or frozenset()
        own = {f"http://{host}" for host in hosts if not port or host.endswith(f":{port}")}
        reached = Entrance(hosts | {urlsplit(url).netloc} if url else hosts, frozenset(own | ({url} if url else set())))
        sessions = ConsoleSessions(settings.session, time.monotonic, holds, others)
        # All ports of a host share their cookies. The port in the name separates them from those of other sidecars.
        access = ConsoleAccess(secrets, sessions, f"sidecar-console-{port}", url.startswith("https:"))
        static_files()
        oidc = None
        if settings.oidc is not None:
            oidc = OidcLogins(settings.oidc, lambda: app.desk.live.current, others)
        results = SharedResults(lambda: app.stages.inside > 0)
        return cls(app, reached, access, process, oidc, others, url, results=results)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The response to a request of a browser."""
        headers = headers_of(request)
        try:
            check_envelope(request, headers, self.entrance)
            return await self._answer(request, headers, origin_form(request.raw_path))
        except Refusal as refusal:
            response = refused(refusal)
            problem_of = orjson.loads(response.body)  # type: ignore[arg-type]
            return await self._fault(request, ConsoleFault(response.status, problem_of["error"]))
        except ConsoleFault as fault:
            return await self._fault(request, fault)
        except Exception:  # a bug of a page affects only its response
            log.exception("a page of the console failed", extra={"path": request.raw_path.partition("?")[0]})
            return await self._fault(request, ConsoleFault(500, "this page failed; the sidecar's log says why"))

    async def handle_of_worker(self, request: web.BaseRequest, by: str) -> web.StreamResponse:
        """The response to another worker, with a session, a login in progress, or this worker's part of a page's
        data."""
        path, _, query = origin_form(request.raw_path).partition("?")
        if path.startswith(SESSION_SOCKET):
            return self._session_of_worker(request.method, path.removeprefix(SESSION_SOCKET))
        if path.startswith(FLOW_SOCKET):
            flow = None if self.oidc is None else self.oidc.take(path.removeprefix(FLOW_SOCKET))
            return problem("no such login", 404) if flow is None else answered(plain_flow(flow))
        found = PAGES.find(path.removeprefix(BASE))
        if found is None or request.method != "GET":
            return problem("no such address", 404)
        page, parts = found
        fields = FormFields.parsed(query)
        asked = ConsoleRequest(
            self.app,
            request,
            path.removeprefix(BASE),
            parts,
            fields,
            FormFields(()),
            "viewer",
            by,
            self.process,
            others=self.others,
            is_of_worker=True,
            results=self.results,
        )
        try:
            return answered(await page.handler(asked))
        except Refusal as refusal:
            return refused(refusal)
        except ConsoleFault as fault:
            return problem(fault.told, fault.status)

    def _session_of_worker(self, method: str, key: str) -> web.Response:
        if method == "DELETE":
            self.access.sessions.end_own(key)
            return answered({})
        session = self.access.sessions.own(key, touch=method == "POST")
        return problem("no such session", 404) if session is None else answered(plain_session(session))

    async def _answer(self, request: web.BaseRequest, headers: Headers, target: str) -> web.StreamResponse:
        path, _, query = target.partition("?")
        if path.startswith(STATIC):
            return self._static(request, path)
        if path in ("/", BASE.rstrip("/"), BASE):
            return _see(FIRST)
        if request.method not in ("GET", "HEAD", "POST"):
            return problem("GET or POST only", 405, {"Allow": "GET, POST"})
        if request.method == "POST":
            check_own_page(headers)
        if path == LOGIN:
            return await self._login(request, headers, query)
        if self.oidc is not None and path == OIDC_BEGIN:
            return await self._begin_oidc(self.oidc, request, headers, query)
        if self.oidc is not None and path == OIDC_FINISH:
            return await self._finish_oidc(self.oidc, request, headers, query)
        if path == LOGOUT:
            return await self._logout(request, headers)
        name = path.removeprefix(BASE)
        streamed = STREAMS.find(name)
        user = await self.access.user(headers, touch=streamed is None)
        if user is None:
            return await self._stranger(request, headers, target)
        if request.method == "POST":
            return await self._act(request, headers, user, name, query)
        if streamed is not None:
            return await self._stream(request, headers, user, name, query, *streamed)
        return await self._page(request, user, name, query)

    # --- access -------------------------------------------------------------------------------------------------------

    async def _stranger(self, request: web.BaseRequest, headers: Headers, target: str) -> web.Response:
        """The response to a request without a login. A page is redirected to the login page, which leads back to
        `target` afterwards; other requests get 401."""
        wants_data = _wants_json(request) or "authorization" in headers
        if request.headers.get("HX-Request") == "true":
            return problem("log in first", 401, {"HX-Redirect": LOGIN})
        if request.method == "POST":  # from a page whose login has ended
            wants_data = wants_data or "text/html" not in request.headers.get("Accept", "")
            target = _path_of(request.headers.get("Referer", ""))
        if wants_data or request.headers.get("Accept", "").startswith("text/event-stream"):
            return problem("a credential is needed", 401, {"WWW-Authenticate": "Bearer"})
        # For a link on another site, the browser does not send the cookie, which is SameSite=Strict. A second request,
        # from a page of the console, has it.
        if headers.get("sec-fetch-site") == ("cross-site",) and self.access.session_id(headers) == "":
            return await self._again(target)
        return _see(f"{LOGIN}?next={quote(target, safe='/')}")

    async def _again(self, target: str) -> web.Response:
        """A page that loads `target` automatically."""
        return await self._html("again.html", {"target": target})

    async def _login(self, request: web.BaseRequest, headers: Headers, query: str) -> web.Response:
        if request.method != "POST":
            return await self._login_page(_next_in(FormFields.parsed(query)))
        peer = request.remote or "local"
        form = await _form_of(request, headers, MAX_FORM_BYTES)
        next_path = _next_in(form)
        if wait_s := self.attempts.wait_s(peer):
            return await self._login_page(next_path, 429, wait_s)
        key = form.get("key", "")
        credential = self.access.credential(key)
        if credential is None:
            self.attempts.failed(peer)
            await self.app.desk.witness("console-login-refused", "unknown", peer=peer)
            return await self._login_page(next_path, 401)
        user = ConsoleUser(name_of(credential), credential.role, person=person_of(credential))
        cookie = await self._begun(user, digest_of(key.encode()), headers, peer)
        return _see(next_path, {"Set-Cookie": cookie})

    async def _begun(self, user: ConsoleUser, credential: str, headers: Headers, peer: str) -> str:
        """Records a login, ends the browser's earlier session, and begins a new one. Returns its `Set-Cookie`. Raises
        Refusal(AUDIT_UNAVAILABLE)."""
        await self.app.desk.witness("console-login", user.by, role=user.role, peer=peer)
        if before := self.access.session_id(headers):
            await self.access.sessions.end(before)
        return self.access.cookie_for(self.access.sessions.begin(user.by, user.role, credential, user.person))

    async def _begin_oidc(
        self, oidc: OidcLogins, request: web.BaseRequest, headers: Headers, query: str
    ) -> web.Response:
        if request.method != "GET":
            raise ConsoleFault(405, "follow the link of the login page")
        if wait_s := self.attempts.wait_s(request.remote or "local"):
            return await self._login_page(FIRST, 429, wait_s)
        origin = self.url or f"http://{headers['host'][0]}"  # Host is one of this listener's names
        flow_id, address = await oidc.begin(_next_in(FormFields.parsed(query)), f"{origin}{OIDC_FINISH}")
        return _see(address, {"Set-Cookie": self.access.flow_cookie_for(flow_id)})

    async def _finish_oidc(
        self, oidc: OidcLogins, request: web.BaseRequest, headers: Headers, query: str
    ) -> web.Response:
        if request.method != "GET":
            raise ConsoleFault(405, "the identity provider sends browsers here")
        peer = request.remote or "local"
        if wait_s := self.attempts.wait_s(peer):
            return await self._login_page(FIRST, 429, wait_s)
        try:
            who = await oidc.finish(self.access.flow_id(headers), FormFields.parsed(query))
        except LoginRefused as refused_login:
            self.attempts.failed(peer)
            await self.app.desk.witness("console-login-refused", "unknown", peer=peer, why=refused_login.reason)
            raise
        cookie = await self._begun(ConsoleUser(who.by, who.role, person=who.person), OIDC, headers, peer)
        # The provider's site led here, so after a redirect the browser would not send the new cookie (SameSite=Strict).
        response = await self._again(who.next_path)
        response.headers.add("Set-Cookie", cookie)
        response.headers.add("Set-Cookie", self.access.flow_cookie_for(""))
        return response

    async def _login_page(self, next_path: str, status: int = 200, wait_s: float = 0.0) -> web.Response:
        told = {200: "", 401: "This is not a key of an operator or a viewer.", 429: "Too many attempts failed."}[status]
        host = "" if self.oidc is None else self.oidc.host
        data = {
            "next": next_path,
            "told": told,
            "wait_s": wait_s,
            "provider": host,
            "keys": bool(self.access.secrets()),
        }
        retry = {"Retry-After": str(int(wait_s) + 1)} if wait_s else {}
        return await self._html("login.html", data, status, retry)

    async def _logout(self, request: web.BaseRequest, headers: Headers) -> web.Response:
        if request.method != "POST":
            raise ConsoleFault(405, "log out with the button of a page")
        session_id = self.access.session_id(headers)
        user = await self.access.user(headers)
        if user is not None and user.session is not None:
            check_token(user.session, headers, await _form_of(request, headers, MAX_FORM_BYTES))
            await self.access.sessions.end(session_id)
            await self.app.desk.witness("console-logout", user.by)
        return _see(LOGIN, {"Set-Cookie": self.access.cookie_for("")})

    # --- pages, actions, streams --------------------------------------------------------------------------------------

    async def _page(self, request: web.BaseRequest, user: ConsoleUser, name: str, query: str) -> web.Response:
        found = PAGES.find(name)
        if found is None:
            raise ConsoleFault(404, "the console has no such page")
        page, parts = found
        _check_role(user, page)
        asked = self._asked(request, user, name, parts, FormFields.parsed(query))
        data = await self.results.in_turn(partial(page.handler, asked))
        if _wants_json(request):
            return answered(data)
        live = f"{BASE}{name}{LIVE}?{asked.query.with_changes({SEEN: digest_of_view(data)})}"
        return _page_of(await self._rendered(page.template, asked, {"live": live, **data}, page.title))

    async def _act(
        self, request: web.BaseRequest, headers: Headers, user: ConsoleUser, name: str, query: str
    ) -> web.Response:
        found = ACTIONS.find(name)
        if found is None:
            raise ConsoleFault(404, "the console has no such action")
        action, parts = found
        if user.session is None:
            raise ConsoleFault(403, "a credential in a header acts at /api; the console's actions need a login")
        form = await _form_of(request, headers, action.max_bytes)
        check_token(user.session, headers, form)
        _check_role(user, action)
        asked = replace(self._asked(request, user, name, parts, FormFields.parsed(query)), form=form)
        try:
            answer = await action.handler(asked)
        finally:
            self.results.forget()
        if isinstance(answer, Fragment):
            return _page_of(await self._rendered(answer.template, asked, answer.data), answer.status)
        return _see(f"{BASE}{answer.removeprefix(BASE)}")

    async def _stream(
        self,
        request: web.BaseRequest,
        headers: Headers,
        user: ConsoleUser,
        name: str,
        query: str,
        streamed: ConsoleStream,
        parts: Mapping[str, str],
    ) -> web.StreamResponse:
        _check_role(user, streamed)
        if self.streams >= MAX_STREAMS:
            raise ConsoleFault(503, "too many pages of the console are open")
        fields, path = FormFields.parsed(query), name.removesuffix(LIVE)
        asked = self._asked(request, user, path, parts, fields.without(SEEN))
        asked = replace(asked, seen=fields.text(SEEN))
        self.streams += 1
        try:
            stream = await open_stream(request, PAGE_HEADERS.items())
            await self._send_events(stream, streamed.handler(asked), asked, headers)
            return stream.response
        finally:
            self.streams -= 1

    async def _send_events(
        self,
        stream: OwnEventStream,
        events: AsyncGenerator[StreamEvent | None],
        asked: ConsoleRequest,
        headers: Headers,
    ) -> None:
        """Sends events until the session ends, the sidecar drains, the reader is gone or the events fail. Then ends the
        stream."""
        looked_at = heard_at = time.monotonic()
        try:
            async with aclosing(events):
                async for event in events:
                    now_s = time.monotonic()
                    if asked.is_draining():
                        break
                    if now_s - looked_at >= STREAM_S:
                        looked_at = now_s
                        if await self.access.user(headers, touch=False) is None:
                            break
                    if event is not None:
                        heard_at = now_s
                        await stream.write(await self._event(event, asked))
                    elif now_s - heard_at >= KEEP_ALIVE_S:
                        heard_at = now_s
                        await stream.keep_alive()
        except (Refusal, ConsoleFault):  # the reader is gone, or the data cannot be read: the browser connects again
            pass
        except Exception:  # a bug of a page affects only its stream
            log.exception("a stream of the console failed", extra={"path": asked.path})
        with suppress(Refusal):
            await stream.end()

    async def _event(self, event: StreamEvent, asked: ConsoleRequest) -> bytes:
        """The bytes of an event. Those of the last events with a key are cached."""
        if event.key is not None and (known := self.rendered.get(event.key)) is not None:
            return known
        written = await self._written(event, asked)
        if event.key is not None:
            self.rendered[event.key] = written
            while len(self.rendered) > MAX_RENDERED:
                self.rendered.popitem(last=False)
        return written

    async def _written(self, event: StreamEvent, asked: ConsoleRequest) -> bytes:
        if event.template:
            body = await self._rendered(event.template, asked, event.data)
        else:
            body = orjson.dumps(event.data)
        lines = b"\n".join(b"data: " + line for line in body.splitlines()) or b"data:"
        return b"event: %b\n%b\n\n" % (event.event.encode(), lines)

    async def _rendered(self, template: str, asked: ConsoleRequest, data: Mapping[str, Any], title: str = "") -> bytes:
        """A template with the data of a page, and with the data that all pages have."""
        of_all = {
            "me": {"by": asked.by, "role": asked.role, "is_operator": asked.is_operator},
            "csrf": "" if asked.session is None else asked.session.csrf,
            "navigation": navigation(),
        }
        location = Location(asked.path, asked.parts, title, asked.query)
        work = partial(rendered, tuple(FOLDERS), template, location, {**of_all, **data})
        return await self.results.in_turn(partial(self.process.run, work))

    # --- responses ----------------------------------------------------------------------------------------------------

    def _asked(
        self, request: web.BaseRequest, user: ConsoleUser, name: str, parts: Mapping[str, str], query: FormFields
    ) -> ConsoleRequest:
        known = user.role, user.by, self.process, user.session, self.others
        results, person = self.results, user.person
        return ConsoleRequest(
            self.app, request, name, parts, query, FormFields(()), *known, results=results, person=person
        )

    async def _html(
        self, template: str, data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] = {}
    ) -> web.Response:
        body = await self.process.run(partial(rendered, tuple(FOLDERS), template, Location(), data))
        return _page_of(body, status, headers)

    def _static(self, request: web.BaseRequest, path: str) -> web.Response:
        file = static_files().get(path)
        if file is None:
            return problem("no such file", 404)
        if request.method not in ("GET", "HEAD"):
            return problem("GET only", 405, {"Allow": "GET"})
        return web.Response(body=file.content, headers={**STATIC_HEADERS, "Content-Type": file.media_type})

    async def _fault(self, request: web.BaseRequest, fault: ConsoleFault) -> web.Response:
        if _wants_json(request):
            return problem(fault.told, fault.status, **fault.facts)
        shown = {"status": fault.status, "told": fault.told, "facts": dict(fault.facts)}
        try:
            return await self._html("fault.html", shown, fault.status)
        except (ConsoleFault, OSError) as other:  # the page about the fault cannot be rendered
            return problem(f"{fault.told}; {other}", fault.status)


def _check_role(user: ConsoleUser, one: ConsolePage | ConsoleAction | ConsoleStream) -> None:
    if user.role not in one.roles:
        raise ConsoleFault(403, f"this needs the role {' or '.join(one.roles)}; you are {user.role}")


def _page_of(body: bytes, status: int = 200, headers: Mapping[str, str] = {}) -> web.Response:
    return web.Response(body=body, status=status, headers={**PAGE_HEADERS, "Content-Type": HTML, **headers})


def _wants_json(request: web.BaseRequest) -> bool:
    accept = request.headers.get("Accept", "")
    return "application/json" in accept and "text/html" not in accept


def _see(path: str, headers: Mapping[str, str] = {}) -> web.Response:
    return web.Response(status=303, headers={**PAGE_HEADERS, "Location": path, **headers})


def _path_of(url: str) -> str:
    """The path of a URL; "" if it is malformed."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _next_in(fields: FormFields) -> str:
    """The path to which a login leads: always one of the console."""
    path = fields.get("next", "")
    return path if path.startswith(BASE) and path.isprintable() and "\\" not in path else FIRST


async def _form_of(request: web.BaseRequest, headers: Headers, max_bytes: int) -> FormFields:
    """The fields of a form. Raises Refusal, ConsoleFault."""
    media = headers.get("content-type", ("",))[0].partition(";")[0].strip().lower()
    if media != FORM:
        raise ConsoleFault(415, f"a form is {FORM}")
    raw = await body_of(request, max_bytes)
    try:
        return FormFields.parsed(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise malformed("the form is not in UTF-8") from None
