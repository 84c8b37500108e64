// The chart of calls per minute. The page contains the points so far, and the stream sends the newest ones.
"use strict";

(() => {
  const NAMES = [["calls", "Calls", "--accent"], ["denied", "Denied", "--bad"], ["limited", "Over a limit", "--warn"], ["failed", "Failed", "--soft"]];
  const place = document.getElementById("traffic");
  const points = JSON.parse(place.dataset.traffic);
  const kept = Math.max(points.at.length, 1);
  let chart = null;

  const span = new URLSearchParams(location.search).get("span") === "1h" ? 3600 : 900;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = (at, characters) => new Date(at * 1000).toISOString().slice(11, 11 + characters);
  const data = () => [points.at, ...NAMES.map(([key]) => points.columns[key])];
  const range = () => {
    const last = points.at.at(-1) ?? Date.now() / 1000;
    const first = points.at[0] ?? last;
    return [Math.min(Math.max(last - span, first), last - 120), last];
  };

  function draw() {
    if (chart !== null) chart.destroy();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const options = {
      width: place.clientWidth,
      height: 190,
      padding: [null, 28, null, null],
      scales: { x: { range }, y: { range: (_, low, high) => [0, Math.max(5, high * 1.1)] } },
      axes: [{ ...axis, values: (_, splits) => splits.map((at) => clock(at, splits[1] - splits[0] < 60 ? 8 : 5)) }, { ...axis, size: 45 }],
      series: [
        { label: "UTC", value: (_, at) => (at === null ? "–" : clock(at, 8)) },
        ...NAMES.map(([, label, name], index) => ({
          label,
          value: (_, count) => (count === null ? "–" : count),
          stroke: colour(name),
          width: 2,
          points: { show: false },
          fill: index === 0 ? colour("--tint") : undefined,
        })),
      ],
    };
    chart = new uPlot(options, data(), place);
  }

  // Replaces points with the same time, appends others, and removes the oldest ones that no longer fit.
  function add(news) {
    news.at.forEach((at, index) => {
      const known = points.at.indexOf(at);
      const where = known < 0 ? points.at.length : known;
      points.at[where] = at;
      for (const [key] of NAMES) points.columns[key][where] = news.columns[key][index];
    });
    const most = Math.max(kept, span / 5 + 1);
    while (points.at.length > most) {
      points.at.shift();
      for (const [key] of NAMES) points.columns[key].shift();
    }
    chart.setData(data());
  }

  place.addEventListener("htmx:sseBeforeMessage", (event) => {
    event.preventDefault(); // the chart uses the data, and htmx swaps nothing
    add(JSON.parse(event.detail.data));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => chart.setSize({ width: place.clientWidth, height: 190 })).observe(place.parentElement);
  draw();
})();
