"""The console as a browser uses it: logging in, pages, forms, event streams, and what it refuses."""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from yarl import URL

import sidecar.admin.console.handler
from sidecar.admin.console.registry import StreamEvent, action, page, stream
from sidecar.admin.console.rendering import FOLDERS
from sidecar.admin.console.request import ConsoleFault, ConsoleRequest
from sidecar.admin.console.sessions import ATTEMPTS_PER_PEER
from tests.flow.world import PATIENCE_S, World, world

OPERATOR, VIEWER = "4f1c9f0b7a6d4e52b8c3d1a09e7f6b5c", "b2d64c1e8f0a4739a5c7e91d3f6b8a20"
PDP = "c7a1e5f09b3d4862a6d0f7b8e1c35942"
SETTINGS = """\
admin:
  listen: "127.0.0.1:0"
  console: {enabled: true}
  credentials:
    - {role: operator, name: olga, secret_path: op.key}
    - {role: viewer, secret_path: view.key}
    - {role: pdp, secret_path: pdp.key}
"""
FILES = {"op.key": OPERATOR, "view.key": VIEWER, "pdp.key": PDP}
HTML = {"Accept": "text/html"}
JSON = {"Accept": "application/json"}


# The templates of the probes are in the folder of this file.
FOLDERS.append(Path(__file__).parent / "console_templates")


@page("probe/{text}", title="Probe", template="probe.html")
async def probe(asked: ConsoleRequest) -> Mapping[str, Any]:
    return {"text": asked.parts["text"]}


@page("probe-broken", title="Broken", template="probe.html")
async def broken(asked: ConsoleRequest) -> Mapping[str, Any]:
    raise RuntimeError("inside")


@action("probe/disable")
async def disable(asked: ConsoleRequest) -> str:
    await asked.operate("POST", f"/api/principals/{asked.form['principal']}/disable", {"reason": "a test"})
    return "now"


@action("probe/careless", role="viewer")
async def careless(asked: ConsoleRequest) -> str:
    return await disable(asked)


@stream("probe/live")
async def said(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    while True:
        yield StreamEvent("said", {"text": asked.query.text("q")}, "probe_event.html")
        await asyncio.sleep(0.1)


@stream("probe-fault/live")
async def fault(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
    yield StreamEvent("said", {})
    raise {"bug": RuntimeError("inside")}.get(asked.query.text("q"), ConsoleFault(503, "not readable now"))


class Browser:
    """A client that keeps cookies and sends what browsers send."""

    def __init__(self, world: World) -> None:
        self.world, self.base = world, world.admin_url
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def with_cookie(self, cookie: str, path: str = "/console/now") -> int:
        """The status for a request with this cookie and no other."""
        headers = {**HTML, "Cookie": cookie}
        jar = aiohttp.DummyCookieJar()
        async with (
            aiohttp.ClientSession(cookie_jar=jar) as http,
            http.get(self.base + path, headers=headers, allow_redirects=False) as response,
        ):
            return response.status

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        sent = {**HTML, **headers}
        async with self.http.get(URL(self.base + path, encoded=True), headers=sent, allow_redirects=False) as response:
            return response.status, await response.text(), response.headers

    async def post(self, path: str, form: dict[str, str], **headers: str) -> tuple[int, str, Any]:
        sent = {**HTML, "Origin": self.base, **headers}
        async with self.http.post(self.base + path, data=form, headers=sent, allow_redirects=False) as response:
            return response.status, await response.text(), response.headers

    async def log_in(self, key: str = OPERATOR, next_path: str = "") -> tuple[int, str, Any]:
        return await self.post("/console/login", {"key": key, "next": next_path})

    async def stream(self, path: str, most: int) -> list[tuple[str, str]]:
        """The first events of a stream, or all if it ends before."""
        found: list[tuple[str, str]] = []
        async with self.http.get(self.base + path, headers={"Accept": "text/event-stream"}) as response:
            assert response.status == 200
            name = ""
            async for line in response.content:
                key, _, value = line.decode().rstrip("\n").partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    found.append((name, value))
                if len(found) == most:
                    break
        return found

    async def csrf(self) -> str:
        _, page, _ = await self.get("/console/now")
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found
        return found[1]

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.key: cookie.value for cookie in self.http.cookie_jar}


@asynccontextmanager
async def browsed(folder: Path, **more: Any) -> AsyncIterator[tuple[World, Browser]]:
    more.setdefault("settings", SETTINGS)
    async with world(folder, files=FILES | more.pop("files", {}), **more) as running:
        browser = Browser(running)
        try:
            yield running, browser
            assert await large_imports(running) == []
        finally:
            await browser.http.close()


async def large_imports(running: World) -> list[str]:
    """What the page process imported for the data of pages, where a first view would take as long as that."""
    process = running.app.listening.page_process
    large = "[name for name in __import__('sys').modules if name.startswith('sidecar.gateway')]"
    return [] if process is None else await process.run(partial(eval, large))


async def test_a_login_leads_to_the_page_that_was_asked_for(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (_, browser):
        for path in ("/", "/console", "/console/"):
            status, _, headers = await browser.get(path)
            assert (status, headers["Location"]) == (303, "/console/now")
        status, _, headers = await browser.get("/console/now?a=b")
        assert (status, headers["Location"]) == (303, "/console/login?next=/console/now%3Fa%3Db")
        status, page, _ = await browser.get(headers["Location"])
        assert status == 200 and 'value="/console/now?a=b"' in page
        status, _, headers = await browser.log_in(next_path="/console/now?a=b")
        assert (status, headers["Location"]) == (303, "/console/now?a=b")
        status, page, _ = await browser.get("/console/now")
        assert status == 200 and "admin:olga" in page and "github" in page


async def test_a_page_answers_its_data_to_a_program_with_a_key(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (_, browser):
        for key, expected in ((VIEWER, 200), (OPERATOR, 200), (PDP, 401), ("wrong", 401), ("", 401)):
            status, page, _ = await browser.get("/console/now", **JSON, Authorization=f"Bearer {key}")
            assert status == expected, key
            assert ("upstreams" in page) is (expected == 200)
        status, _, headers = await browser.get("/console/now", **JSON)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        # A header is no login: a form needs a session, so that only its own page can send it.
        key = {"Authorization": f"Bearer {OPERATOR}"}
        status, page, _ = await browser.post("/console/now", {}, **key)
        assert status == 404
        assert (await browser.get("/console/nothing", **key))[0] == 404
        assert (await browser.get("/console/now", **key, Cookie="a=b"))[0] == 200


@pytest.mark.parametrize("path", ["/console/now", "/console/login", "/console/nothing"])
async def test_every_page_forbids_frames_foreign_sources_and_caches(tmp_path: Path, path: str) -> None:
    async with browsed(tmp_path) as (_, browser):
        await browser.log_in()
        _, page, headers = await browser.get(path)
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
            "base-uri": "'none'",
        }
        assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "same-origin" and headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", page)
        assert not re.search(r"(?:src|href|action)=\"(?!/console/|#)", page)


async def test_a_cookie_opens_the_console_and_nothing_else(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        _, _, headers = await browser.log_in()
        port = running.admin_url.rpartition(":")[2]
        assert re.fullmatch(
            rf"sidecar-console-{port}=0\.[\w-]{{43}}; Path=/console; HttpOnly; SameSite=Strict", headers["Set-Cookie"]
        )
        ((name, value),) = browser.cookies.items()
        for path in ("/status", "/api/principals", "/api/upstreams"):
            assert await browser.with_cookie(f"{name}={value}", path) == 401, path
        assert await browser.with_cookie(f"{name}={value}") == 200
        assert await browser.with_cookie(f"{name}=0.{'A' * 43}") == 303
        assert await browser.with_cookie(f"{name}=0.{'A' * 43}; {name}={value}") == 303
        assert value not in (running.folder / "data" / "audit" / "audit.jsonl").read_text()


async def test_an_id_that_was_there_before_a_login_opens_nothing_after_it(tmp_path: Path) -> None:
    """Session fixation, and what an id is worth after a log-out."""
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        ((name, first),) = browser.cookies.items()
        await browser.log_in()
        assert browser.cookies[name] != first
        assert (await browser.get("/console/now"))[0] == 200
        second = browser.cookies[name]
        browser.http.cookie_jar.clear()
        assert (await browser.get("/console/now", Cookie=f"{name}={first}"))[0] == 303
        planted = f"{name}=0.{'planted' * 6}x"
        _, _, headers = await browser.post("/console/login", {"key": VIEWER}, Cookie=planted)
        assert "planted" not in headers["Set-Cookie"]
        browser.http.cookie_jar.clear()
        assert (await browser.get("/console/now", Cookie=planted))[0] == 303
        told = {"Cookie": f"{name}={second}"}
        _, page, _ = await browser.get("/console/now", **told)
        token = re.search(r'name="csrf" value="([^"]+)"', page)
        assert token
        assert (await browser.post("/console/logout", {}, **told))[0] == 403
        status, _, headers = await browser.post("/console/logout", {"csrf": token[1]}, **told)
        assert status == 303 and "Max-Age=0" in headers["Set-Cookie"]
        assert (await browser.get("/console/now", **told))[0] == 303
        events = [(one["what"], one["by"]) for one in map(itemgetter("control"), running.records()) if one]
        assert events[1:] == [
            ("console-login", "admin:olga"),
            ("console-login", "admin:olga"),
            ("console-login", "admin:viewer"),
            ("console-logout", "admin:olga"),
        ]


async def test_a_form_of_another_site_changes_nothing(tmp_path: Path) -> None:
    """CSRF: the browser says where a form comes from, and the form carries its session's token."""
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        token, form = await browser.csrf(), {"principal": "nhi:planner"}

        def is_disabled() -> bool:
            return bool(running.app.disabled_principals())

        good = {**form, "csrf": token}
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": browser.base.replace("http:", "https:")},
            {"Origin": "http://127.0.0.1:1"},
        ):
            assert (await browser.post("/console/probe/disable", good, **headers))[0] == 403, headers
        assert (await browser.post("/console/probe/disable", form))[0] == 403
        assert (await browser.post("/console/probe/disable", {**form, "csrf": token[:-1] + "é"}))[0] == 403
        other = Browser(running)
        await other.log_in()
        assert (await other.post("/console/probe/disable", good))[0] == 403  # a token of another session
        await other.http.close()
        async with browser.http.post(f"{browser.base}/console/probe/disable", data=good, headers=HTML) as response:
            assert response.status == 403  # neither Origin nor Sec-Fetch-Site
        assert not is_disabled()
        status, _, headers = await browser.post("/console/probe/disable", good)
        assert (status, headers["Location"], is_disabled()) == (303, "/console/now", True)
        (entry,) = running.app.disabled_principals()
        assert entry.by == "admin:olga"


async def test_a_viewer_changes_nothing(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in(VIEWER)
        form = {"principal": "nhi:planner", "csrf": await browser.csrf()}
        status, page, _ = await browser.post("/console/probe/disable", form)
        assert status == 403 and "this needs the role operator" in page
        # An action that forgets to ask for a role still gives its order as who is logged in.
        status, page, _ = await browser.post("/console/probe/careless", form)
        assert status == 403 and "operator" in page
        assert not running.app.disabled_principals()


async def test_what_upstreams_and_callers_say_stays_text(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'&{{71*13}}</script>"
    async with browsed(tmp_path) as (_, browser):
        await browser.log_in()
        _, page, _ = await browser.get("/console/probe/" + quote(hostile, safe="") + "?" + urlencode({"q": hostile}))
        assert "<img src=x" not in page
        assert page.count("&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;{{71*13}}&lt;/script&gt;") == 3
        _, page, _ = await browser.get("/console/login?" + urlencode({"next": '/console/"><img src=x>'}))
        assert "<img src=x" not in page
        events = await browser.stream("/console/probe/live?" + urlencode({"q": hostile}), 1)
        assert events == [("said", "<p>&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;{{71*13}}&lt;/script&gt;</p>")]


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "/consoleevil", "/status", "\r\nX: y", ""],
)
async def test_a_login_leads_nowhere_else(tmp_path: Path, elsewhere: str) -> None:
    async with browsed(tmp_path) as (_, browser):
        _, _, headers = await browser.log_in(next_path=elsewhere)
        assert headers["Location"] == "/console/now"


async def test_keys_cannot_be_tried_without_end(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        for _ in range(ATTEMPTS_PER_PEER):
            status, page, _ = await browser.log_in("guess")
            assert status == 401 and "This is not a key" in page and "guess" not in page
        assert (await browser.log_in(PDP))[0] == 429
        status, page, headers = await browser.log_in()  # not even the right one
        assert status == 429 and 0 < int(headers["Retry-After"]) <= 61 and not browser.cookies
        refused = [one["control"] for one in running.records() if one["event"] == "control"][1:]
        assert len(refused) == ATTEMPTS_PER_PEER
        assert refused[0] == {"what": "console-login-refused", "by": "unknown", "peer": "127.0.0.1"}


async def test_a_login_ends_with_its_credential(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        second = Browser(running)
        await second.log_in(VIEWER)
        (tmp_path / "op.key").write_text("5b0e7a31c94f4d1f8a6be2d970c3f184")
        assert (await browser.get("/console/now"))[0] == 200
        await running.app.reload("test")
        assert (await browser.get("/console/now"))[0] == 303
        assert (await second.get("/console/now"))[0] == 200
        written = (tmp_path / "sidecar.yaml").read_text()
        (tmp_path / "sidecar.yaml").write_text(written.replace("role: viewer,", "role: operator,"))
        await running.app.reload("test")
        assert (await second.get("/console/now"))[0] == 303  # who was a viewer has another role
        await second.http.close()


async def test_an_idle_login_ends_and_its_stream_with_it(tmp_path: Path) -> None:
    settings = SETTINGS.replace("{enabled: true}", "{enabled: true, session: 1s}")
    async with browsed(tmp_path, settings=settings) as (_, browser):
        await browser.log_in()
        began_s = time.monotonic()
        events = await browser.stream("/console/probe/live", 1_000_000)  # to its end: a stream is no activity
        assert events and time.monotonic() - began_s >= 1
        assert (await browser.get("/console/now"))[0] == 303


async def test_an_address_of_another_host_is_refused_and_a_configured_one_is_served(tmp_path: Path) -> None:
    settings = SETTINGS.replace("{enabled: true}", '{enabled: true, url: "https://ops.acme.example"}')
    async with browsed(tmp_path, settings=settings) as (_, browser):
        assert (await browser.get("/console/login", Host="evil.example"))[0] == 403
        assert (await browser.get("/console/login", Host="ops.acme.example"))[0] == 200
        proxied = {"Host": "ops.acme.example", "Origin": "https://ops.acme.example"}
        status, _, headers = await browser.post("/console/login", {"key": OPERATOR}, **proxied)
        assert status == 303 and headers["Set-Cookie"].endswith("; Secure")
        assert (await browser.post("/console/login", {"key": OPERATOR}, Origin="https://other.example"))[0] == 403
        assert (await browser.get("/status", Host="ops.acme.example"))[0] == 403  # the API has its own names


async def test_a_link_on_another_site_finds_the_login(tmp_path: Path) -> None:
    """The cookie is SameSite=Strict: a request that another site causes has none, the next one of our page has it."""
    async with browsed(tmp_path) as (_, browser):
        status, page, headers = await browser.get("/console/now?a=%22b", **{"Sec-Fetch-Site": "cross-site"})
        assert status == 200 and 'content="0; url=/console/now?a=%22b"' in page and "script" not in page
        assert "Content-Security-Policy" in headers
        assert (await browser.get("/console/now", **{"Sec-Fetch-Site": "same-origin"}))[0] == 303


async def test_static_files_are_kept_by_browsers_and_their_addresses_change_with_them(tmp_path: Path) -> None:
    async with browsed(tmp_path) as (_, browser):
        _, page, _ = await browser.get("/console/login")
        found = re.findall(r'"(/console/static/([0-9a-f]{16})/[\w./-]+)"', page)
        assert found
        for path, digest in found:
            async with browser.http.get(browser.base + path) as response:
                assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
                assert hashlib.sha256(await response.read()).hexdigest().startswith(digest)
        for path in (
            found[0][0].replace(found[0][1], "0" * 16),
            "/console/static/%2e%2e/handler.py",
            "/console/static/",
        ):
            assert (await browser.get(path))[0] == 404, path


async def test_a_page_that_fails_shows_nothing_of_its_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with browsed(tmp_path) as (_, browser):
        await browser.log_in()
        status, page, _ = await browser.get("/console/probe-broken")
        assert status == 500 and "inside" not in page
        assert "inside" in caplog.text
        status, page, _ = await browser.get("/console/probe-broken", **JSON)
        assert status == 500 and "inside" not in page


async def test_without_the_setting_there_is_no_console(tmp_path: Path) -> None:
    settings = SETTINGS.replace("{enabled: true}", "{enabled: false}")
    async with browsed(tmp_path, settings=settings) as (_, browser):
        for path in ("/", "/console/now", "/console/login", "/console/static/x"):
            assert (await browser.get(path, Authorization=f"Bearer {OPERATOR}"))[0] == 404, path


@pytest.mark.parametrize("why", ["fault", "bug"])
async def test_a_stream_that_fails_ends_and_its_connection_serves_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    async with browsed(tmp_path) as (_, browser):
        await browser.log_in()
        for _ in range(2):
            async with asyncio.timeout(PATIENCE_S):
                events = await browser.stream(f"/console/probe-fault/live?q={why}", 1_000_000)
            assert events == [("said", "{}")]
    logged = [record.message for record in caplog.records if record.name == "sidecar.admin.console"]
    assert logged == ["a stream of the console failed"] * 2 * (why == "bug")


async def test_too_many_streams_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.admin.console.handler, "MAX_STREAMS", 1)
    async with browsed(tmp_path) as (_, browser):
        await browser.log_in()
        async with browser.http.get(f"{browser.base}/console/probe/live", headers=HTML) as first:
            await first.content.readline()
            assert (await browser.get("/console/probe/live"))[0] == 503
        status = 503
        async with asyncio.timeout(PATIENCE_S):
            while status == 503:  # until it is seen that the first reader is gone
                async with browser.http.get(f"{browser.base}/console/probe/live", headers=HTML) as again:
                    status = again.status
        assert status == 200


async def test_data_of_pages_makes_the_page_process_import_nothing_large(tmp_path: Path) -> None:
    """A first view would take as long as that; a value of an enumeration of ours is enough."""
    async with browsed(tmp_path) as (running, browser):
        await browser.log_in()
        for name in (
            "now",
            "decisions",
            "limits",
            "audit",
            "access",
            "policy",
            "tools",
            "switches",
            "approvals",
            "agents",
        ):
            assert (await browser.get(f"/console/{name}"))[0] == 200
        assert running.app.listening.page_process is not None
        assert await large_imports(running) == []
