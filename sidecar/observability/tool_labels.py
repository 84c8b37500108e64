"""Chooses which tools have a value of their own in the `tool` label, so that their number is bounded."""

from collections import Counter
from collections.abc import Container

from sidecar.observability.registry import SeriesTable

OTHER_TOOLS = "_other"
MAX_COUNTED = 10_000  # tools, about 0.2 KB each; further ones are `_other` until counts have faded
REPLACES = 2  # a tool with more than this many times the calls of another replaces it: series must not come and go


class ToolLabels:
    """Finds the `top` most called tools among those that their servers list; all others are `_other`. Old calls fade:
    each `choose` halves the counts."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.values = {"", OTHER_TOOLS}
        """The values of the label; "" is for requests that call no tool."""
        self._chosen: set[tuple[str, str]] = set()
        self._calls: Counter[tuple[str, str]] = Counter()

    def label(self, server: str, tool: str, listed: Container[str]) -> str:
        """Counts a call, and returns the tool's label. A tool gets a label of its own if the server lists it and fewer
        than `top` have one; `choose` replaces tools later."""
        key = server, tool
        if key not in self._chosen:
            if tool not in listed or (len(self._calls) >= MAX_COUNTED and key not in self._calls):
                return OTHER_TOOLS
            if len(self._chosen) >= self.top:
                self._calls[key] += 1
                return OTHER_TOOLS
            self._chosen.add(key)
            self.values.add(tool)
        self._calls[key] += 1
        return tool

    def adopt(self, requests: SeriesTable) -> None:
        """Continues with the tools that the series of a worker that died have as labels."""
        upstream, tool = requests.labels.index("upstream"), requests.labels.index("tool")
        self._chosen |= {
            (labels[upstream], labels[tool]) for labels in requests.rows if labels[tool] not in self.values
        }
        self.values.update(tool for _, tool in self._chosen)

    def choose(self, requests: SeriesTable) -> list[tuple[tuple[str, ...], list[float]]]:
        """Chooses again, and removes the series of tools that lost their label. Returns the labels and numbers of these
        series."""
        others = [key for key, _ in self._calls.most_common(self.top) if key not in self._chosen]
        weakest = sorted(self._chosen, key=self._calls.__getitem__)
        lost = set[tuple[str, str]]()
        for newcomer, chosen in zip(others, weakest, strict=False):
            if self._calls[newcomer] <= REPLACES * self._calls[chosen]:
                break
            self._chosen.remove(chosen)
            self._chosen.add(newcomer)
            lost.add(chosen)
        self._calls = Counter({key: count // 2 for key, count in self._calls.items() if count > 1})
        if not lost:
            return []
        self.values.clear()
        self.values.update(("", OTHER_TOOLS), (tool for _, tool in self._chosen))
        upstream, tool = requests.labels.index("upstream"), requests.labels.index("tool")
        return requests.remove(lambda labels: (labels[upstream], labels[tool]) in lost)
