// Additions to htmx for all pages: relative times are updated, streams pause while their tab is hidden, news waits while
// a pointer is pressed, and a page whose login has ended is loaded again.
"use strict";

const SPANS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

// A time span in its two largest units, as the filter `duration` writes it.
function duration(seconds) {
  let left = Math.floor(seconds);
  const parts = [];
  for (const [unit, size] of SPANS) {
    if (left >= size) {
      parts.push(`${Math.floor(left / size)} ${unit}`);
      left %= size;
    }
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

function ago(moment) {
  const away = (Date.now() - Date.parse(moment)) / 1000;
  if (Number.isNaN(away)) return null;
  if (Math.abs(away) < 1) return "now";
  return away > 0 ? `${duration(away)} ago` : `in ${duration(-away)}`;
}

setInterval(() => {
  if (document.hidden) return;
  for (const element of document.querySelectorAll("time[datetime]")) {
    const text = ago(element.dateTime);
    if (text !== null && text !== element.textContent) element.textContent = text;
  }
}, 1000);

// An element that is replaced while the pointer is pressed on it gets no click, so news waits until the release. htmx
// restores the focus of an element that has an id.
const waiting = [];
let isPressed = false;
document.addEventListener("pointerdown", () => { isPressed = true; }, true);
function released() {
  setTimeout(() => {
    isPressed = false;
    for (const deliver of waiting.splice(0)) deliver();
  });
}
for (const name of ["pointerup", "pointercancel", "dragend"]) document.addEventListener(name, released, true);
window.addEventListener("blur", released);

// An EventSource that is closed while its tab is hidden, and opened again when the tab is shown. A browser has at most
// six connections to one host over HTTP/1.1, so the streams of six tabs would leave none for a page.
const HIDDEN_MS = 5000;

class TabSource extends EventTarget {
  onopen = null;
  onerror = null;

  constructor(url) {
    super();
    this.url = url;
    this.names = new Set();
    this.isClosed = false;
    this.turned = () => this.turn();
    document.addEventListener("visibilitychange", this.turned);
    this.open();
  }

  get readyState() {
    if (this.isClosed) return EventSource.CLOSED;
    return this.inner === null ? EventSource.CONNECTING : this.inner.readyState;
  }

  open() {
    this.inner = new EventSource(this.url);
    this.inner.onopen = (event) => this.onopen?.(event);
    this.inner.onerror = (event) => this.onerror?.(event);
    for (const name of this.names) this.hear(name);
  }

  hear(name) {
    this.inner.addEventListener(name, ({ data, lastEventId }) => {
      const deliver = () => this.dispatchEvent(new MessageEvent(name, { data, lastEventId }));
      if (isPressed) waiting.push(deliver);
      else deliver();
    });
  }

  addEventListener(name, listener, options) {
    super.addEventListener(name, listener, options);
    if (this.names.has(name)) return;
    this.names.add(name);
    if (this.inner !== null) this.hear(name);
  }

  turn() {
    clearTimeout(this.timer);
    if (document.hidden) {
      this.timer = setTimeout(() => this.rest(), HIDDEN_MS);
    } else if (this.inner === null && !this.isClosed) {
      this.open();
    }
  }

  rest() {
    this.inner?.close();
    this.inner = null;
  }

  close() {
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.turned);
    this.isClosed = true;
    this.rest();
  }
}

htmx.createEventSource = (url) => new TabSource(url);

const lost = document.getElementById("stream-lost");
document.addEventListener("htmx:sseOpen", () => { lost.hidden = true; });
document.addEventListener("htmx:sseError", async () => {
  lost.hidden = false;
  const answer = await fetch(location.href, { headers: { Accept: "application/json" } });
  if (answer.status === 401) location.reload();
});
