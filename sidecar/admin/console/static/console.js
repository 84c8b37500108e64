// What pages of the console do beside htmx.
"use strict";

// A stream that ends with its session leads to the login, and back to this page.
document.addEventListener("htmx:sseError", async () => {
  const answer = await fetch(location.href, { headers: { Accept: "application/json" }, method: "HEAD" });
  if (answer.status === 401) location.reload();
});
