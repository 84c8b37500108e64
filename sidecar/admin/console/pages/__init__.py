"""The pages of the console, one module for each part. Importing the package registers all of them.

    @page("decisions", title="Decisions", template="decisions.html")
    async def decisions(asked: ConsoleRequest) -> Mapping[str, Any]:
        return paged(rows, asked.query) | {"filter": asked.query.text("principal")}

    @action("principals/disable", role="operator")
    async def disable(asked: ConsoleRequest) -> str:
        await asked.operate("POST", f"/api/principals/{quote(asked.form['principal'])}/disable", {"reason": ...})
        return "access"

    @stream("decisions/live")
    async def live(asked: ConsoleRequest) -> AsyncGenerator[StreamEvent | None]:
        yield StreamEvent("row", {...}, "decisions_row.html")

A template extends `layout.html`, fills its block `main`, and uses shared parts of `ui.html`. It has the data of its
page, and `location`, `me`, `csrf`, `query`, `live` (the address of its stream) and `here(name=value)` (the address of
this page with changed fields in its query).
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
