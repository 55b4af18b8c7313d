// Draw columns of numbers as charts. Charts are redrawn in place, so a zoom survives new points.

/* global uPlot */

const MAX_POINTS = 1800; // as many as the server keeps
const COLOURS = {
  light: ["#1d5fd0", "#b25400", "#5b6475", "#127a57", "#8a3ea8", "#b3261e", "#00707e", "#6b5a00"],
  dark: ["#7fb0ff", "#ffb066", "#a9b3c6", "#6bd6a8", "#d7a2f0", "#ff9c93", "#62d0dd", "#d9c15a"],
};
const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3]]; // so that lines differ not only by colour

export const number = (value, digits = 4) =>
  value === null || value === undefined || !Number.isFinite(value)
    ? "–"
    : value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) >= 10 ** digits ? Math.floor(Math.log10(Math.abs(value))) + 1 : digits });

// What each chart shows: a title, and for each line its name and a function that gets its numbers.
export function plans(snapshot) {
  const { metric, modes, members, kind, forecasts, read_only: readOnly } = snapshot;
  const regression = kind !== "SpiderClassifier";
  const lines = (names, column) => names.map((name, at) => [name, (points) => points[column].map((each) => each?.[at] ?? null)]);
  const curve = (column) => (points) => points[column];
  const unit = metric === "rmse" ? "RMSE" : "log loss";
  const nextEntry = snapshot.error !== null || !forecasts; // false if every entry comes with a forecast
  return [
    !readOnly && forecasts > 0 && {
      key: "forecasts",
      title: `Error of forecasts (${unit}, lower is better)`,
      lines: [["forecasts", curve("forecast_error")], ["mean so far", curve("forecast_floor_mean")], ["one bias per node", curve("forecast_floor_biases")]],
    },
    !readOnly && nextEntry && {
      key: "error",
      title: `Error of the next entry (${unit}, lower is better)`,
      lines: [["next entry", curve("error")], ["mean so far", curve("floor_mean")], ["one bias per node", curve("floor_biases")]],
    },
    !readOnly && regression && {
      key: "coverage",
      title: "Values inside their 90 % intervals",
      lines: [...(nextEntry ? [["next entry", curve("coverage")]] : []), ["wanted", (points) => points.time.map(() => 0.9)], ...(forecasts ? [["forecasts", curve("forecast_coverage")]] : [])],
      share: true,
    },
    { key: "rate", title: "Entries per second", lines: [["learned", curve("rate")]], fromZero: true },
    members.length > 1 && { key: "weights", title: "Weights of the members", lines: lines(members.map((each) => each.name), "weights"), share: true, fromZero: true },
    { key: "nodes", title: "Nodes per mode (log scale)", lines: lines(modes, "nodes"), log: true },
    regression && { key: "noise", title: "Noise (standard deviation)", lines: [["noise", curve("noise")]] },
  ].filter(Boolean);
}

export class Charts {
  constructor(place, onZoom) {
    this.place = place;
    this.onZoom = onZoom;
    this.points = null;
    this.zoomed = null; // [from, to] in seconds, for all charts
    this.seconds = null; // how many of the latest seconds to show; null: all
    this.drawn = []; // {plan, chart, summary}
    this.shape = ""; // titles and line names of the drawn charts
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.build());
    new ResizeObserver(() => this.fit()).observe(place);
  }

  history(points) {
    this.points = points;
    this.draw();
  }

  add(snapshot) {
    if (this.points === null) return;
    for (const [name, column] of Object.entries(this.points)) {
      column.push(name === "weights" ? snapshot.members.map((each) => each.weight) : snapshot[name]);
      if (column.length > MAX_POINTS) column.shift();
    }
    this.plans = plans(snapshot);
    const shape = JSON.stringify(this.plans.map((plan) => [plan.title, plan.lines.map(([name]) => name)]));
    if (shape !== this.shape) {
      this.shape = shape;
      this.build();
    } else {
      this.draw();
    }
  }

  show(seconds) {
    this.seconds = seconds;
    this.zoom(null);
  }

  zoom(range) {
    this.zoomed = range;
    this.onZoom(range !== null);
    this.draw();
  }

  build() {
    for (const { chart } of this.drawn) chart.destroy();
    this.place.replaceChildren();
    this.drawn = (this.plans ?? []).map((plan) => this.made(plan));
    this.draw();
  }

  made(plan) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const summary = document.createElement("p"); // for a screen reader, which cannot see the canvas
    figure.id = `chart-${plan.key}`;
    caption.textContent = plan.title;
    summary.className = "visually-hidden";
    figure.append(caption, summary);
    this.place.append(figure);
    const colours = this.dark.matches ? COLOURS.dark : COLOURS.light;
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--soft").trim();
    const line = style.getPropertyValue("--line").trim();
    const write = (value) => (plan.share && value !== null && value !== undefined ? `${number(value * 100, 3)} %` : number(value));
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const chart = new uPlot(
      {
        width: this.width(figure),
        height: 190,
        scales: {
          x: { time: true, range: (_, least, most) => this.shown(least, most) },
          y: { distr: plan.log ? 3 : 1, range: (_, least, most) => limits(least, most, plan) },
        },
        axes: [{ ...axis, space: 70, size: 32, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step < 60)) }, { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : write(tick))) }],
        series: [
          { label: "time", value: (self, _, __, at) => clock(self.data[0][at ?? self.data[0].length - 1], true) },
          ...plan.lines.map(([label], n) => ({
            label,
            stroke: colours[n % colours.length],
            width: 2,
            dash: DASHES[n % DASHES.length],
            points: { show: false },
            // the value under the pointer, else the latest
            value: (self, value, line, at) => write(at === null ? self.data[line].at(-1) : value),
          })),
        ],
        cursor: { drag: { x: true, y: false, setScale: false }, sync: { key: "spider" } },
        hooks: {
          setSelect: [(self) => this.selected(self)],
          ready: [(self) => self.over.addEventListener("dblclick", () => this.zoom(null))],
        },
      },
      [[], ...plan.lines.map(() => [])],
      figure,
    );
    return { plan, chart, summary, figure, write };
  }

  selected(chart) {
    const { left, width } = chart.select;
    if (width > 4) {
      const range = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
      chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.zoom(range);
    }
  }

  // The range of times shown in every chart.
  shown(least, most) {
    if (this.zoomed !== null) return this.zoomed;
    if (least === null || least === most) return [(most ?? 0) - 30, (most ?? 0) + 30];
    return [this.seconds === null ? least : most - this.seconds, most];
  }

  draw() {
    if (this.points === null) return;
    for (const { plan, chart, summary, write } of this.drawn) {
      const lines = plan.lines.map(([, of]) => (plan.log ? of(this.points).map((each) => each || null) : of(this.points)));
      chart.setData([this.points.time, ...lines]);
      const last = plan.lines.map(([name], n) => `${name} ${write(lines[n].at(-1) ?? NaN)}`);
      summary.textContent = `Now: ${last.join(", ")}.`;
    }
  }

  width(figure) {
    const { paddingLeft, paddingRight } = getComputedStyle(figure);
    return Math.max(200, figure.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
  }

  fit() {
    for (const { chart, figure } of this.drawn) {
      if (chart.width !== this.width(figure)) chart.setSize({ width: this.width(figure), height: 190 });
    }
  }
}

const clock = (seconds, exact) =>
  seconds === undefined || seconds === null
    ? "–"
    : new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: exact ? "2-digit" : undefined });

// The range of the vertical axis: some room around the lines, starting at 0 for plans with fromZero.
function limits(least, most, plan) {
  if (plan.log) return [1, 10 ** Math.ceil(Math.log10((most ?? 1) + 1))];
  if (least === null) return [0, 1];
  const from = plan.fromZero ? Math.min(0, least) : least;
  const room = (most - from) * 0.08 || Math.abs(most) * 0.1 || 0.5;
  return [plan.fromZero ? from : from - room, most + room];
}
