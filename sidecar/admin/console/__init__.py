"""The web console of operators, served by the admin listener under `/console`.

handler     Console: answers one request: access, pages, actions, event streams, static files
registry    @page, @action, @stream: what `pages/` registers, and the order of the navigation
request     ConsoleRequest: what a page is given
live        watched(): the data of a page, each time it changes
audit_view  the audit log for pages; audit_feed, what is recorded as it comes
access      who asks: a credential in a header, or a session's cookie
sessions    logins kept in memory, and how many attempts there may be
rendering   Jinja templates, their filters, and the addresses of static files
pages/      one module a page; templates/ and static/ hold what browsers get

The package is imported when the console is enabled and first asked for.
"""

from sidecar.admin.console.handler import Console as Console
