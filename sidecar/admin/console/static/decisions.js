// The row of a call that has ended replaces its earlier row, and the list has a maximum length.
"use strict";

const MOST = 200;

document.addEventListener("htmx:sseBeforeMessage", event => {
  if (event.detail.type !== "calls") return;
  const rows = new DOMParser().parseFromString(`<table>${event.detail.data}</table>`, "text/html");
  for (const row of rows.querySelectorAll("tr[id]")) document.getElementById(row.id)?.remove();
  document.querySelector("#calls .empty")?.closest("tr").remove();
});

document.addEventListener("htmx:sseMessage", event => {
  if (event.detail.type !== "calls") return;
  const rows = document.getElementById("calls").rows;
  while (rows.length > MOST) rows[rows.length - 1].remove();
});
