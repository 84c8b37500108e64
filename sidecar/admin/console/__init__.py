"""The web console of operators, served by the admin listener under `/console`.

handler       Console: answers one request: access, pages, actions, event streams, static files
registry      @page, @action, @stream: what `pages/` registers, and the order of the navigation
request       ConsoleRequest: what a page is given
live          watched(): the data of a page, each time it changes
audit_view    the audit log for pages; audit_feed, what is recorded as it comes
page_process  does what takes long in a process of its own; page_work is that process
log_rows      what it finds in the logs for pages; log_news, for feeds
access        who asks: a credential in a header, or a session's cookie
sessions      logins kept in memory, and how many attempts there may be
rendering     Jinja templates, their filters, and the addresses of static files
pages/        one module a page; templates/ and static/ hold what browsers get

What the page process imports, imports little: rendering, form_fields, log_rows, log_news, page_work. The rest is
imported when the console is enabled.
"""
