// What pages of the console do beside htmx: relative times go on, and a page whose login has ended is loaded anew.
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

document.addEventListener("htmx:sseError", async () => {
  const answer = await fetch(location.href, { headers: { Accept: "application/json" } });
  if (answer.status === 401) location.reload();
});
