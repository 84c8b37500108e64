"""The web console of operators, served by the admin listener under `/console`.

handler       Console: answers one request: access, pages, actions, event streams, static files
registry      @page, @action and @stream, with which `pages/` registers its functions; the order of the navigation
request       ConsoleRequest: the argument of these functions
live          watched(): the data of a page, each time it changes
audit_view    the audit log for pages; audit_feed, new records for streams
verification  verifies the audit logs in the background
page_process  runs long work in a separate process; page_work is the code of that process
log_rows      searches the logs for pages, and log_news for streams; both run in the page process
access        identifies users: by a credential in a header, or by the cookie of a session
sessions      logins, stored in memory, and the bound on failed ones; oidc, logins at an OpenID provider
policy_files  lines of the policy's files; side_by_side, patches and marked_text, differences between texts
rendering     Jinja templates, their filters, and the addresses of static files
pages/        one module for each part of the console; templates/ and static/ have the files for browsers

The modules that the page process imports (rendering, form_fields, log_rows, log_news, page_work) import few others, so
that it starts fast. The other modules are imported when the console is enabled.
"""
