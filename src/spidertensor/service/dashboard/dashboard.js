// The page: shows the server's snapshots, one a second, as numbers, curves, alarms and a table.
// Everything from the stream goes on the page as text, never as markup.

import { Charts, number } from "./charts.js";

const byId = (id) => document.getElementById(id);
const element = (tag, text = "", className = "") => {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
};

const QUIET_MS = 5000; // without a snapshot, after which the connection counts as lost
let latest = null; // snapshot
let heard = 0; // when it arrived

const charts = new Charts(byId("charts"), (zoomed) => {
  byId("unzoom").hidden = !zoomed;
});

// --- the connection

function listen() {
  const events = new EventSource("v1/events");
  events.addEventListener("history", (event) => charts.history(JSON.parse(event.data)));
  events.addEventListener("snapshot", (event) => {
    latest = JSON.parse(event.data);
    heard = Date.now();
    show(latest);
  });
  events.addEventListener("error", () => {
    state("lost", "connection lost, trying again");
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000); // the browser has given up
  });
}

function state(name, text) {
  const place = byId("connection");
  if (place.textContent !== text) place.textContent = text;
  place.dataset.state = name;
}

setInterval(() => {
  if (heard && Date.now() - heard > QUIET_MS) state("lost", "connection lost, trying again");
}, 1000);

// --- the numbers

function show(snapshot) {
  const { ready, read_only: readOnly } = snapshot;
  document.title = `${snapshot.model} · spider`;
  byId("model").textContent = snapshot.model;
  byId("about").textContent = `${snapshot.value} of ${snapshot.modes.join(" × ")}`;
  if (!ready) state("waiting", "replaying the journal");
  else state("live", readOnly ? "live, following a file" : "live");
  charts.add(snapshot);
  showNumbers(snapshot);
  showAlarms(snapshot.alarms);
  showSurprises(snapshot);
  showForms(snapshot.modes);
}

function showNumbers(snapshot) {
  const { error, coverage, forecasts, unknown_forecasts: unknown, read_only: readOnly } = snapshot;
  const tiles = [["entries learned", number(snapshot.entries), readOnly ? "" : `${number(snapshot.rate, 3)} per second`]];
  if (!readOnly) {
    if (forecasts || unknown) tiles.push(...forecastTiles(snapshot));
    if (error !== null || !forecasts) tiles.push(errorTile("error of the next entry", error, snapshot.floor_mean, snapshot.floor_biases, snapshot.metric));
    if (coverage !== null) tiles.push(["next entry in 90 % intervals", `${number(coverage * 100, 3)} %`, "should be 90 %"]);
  }
  tiles.push(["nodes", number(snapshot.nodes.reduce((sum, each) => sum + each, 0)), snapshot.modes.map((mode, n) => `${mode} ${number(snapshot.nodes[n])}`).join(", ")]);
  const age = snapshot.checkpoint_age;
  tiles.push(["last saved", age === null ? "–" : ago(age), readOnly ? "" : `${number(snapshot.queue)} waiting, journal ${bytes(snapshot.journal_bytes)}`]);
  const stream = snapshot.stream;
  if (stream) {
    const state = stream.connected ? `${number(stream.reconnects)} reconnects, ${number(stream.bad)} bad messages` : "not connected";
    tiles.push(["stream lag", stream.lag === null ? "–" : number(stream.lag), state, stream.connected ? "" : "worse"]);
  }
  const list = byId("numbers");
  while (list.children.length > tiles.length) list.lastChild.remove();
  tiles.forEach(([name, value, note, mark], n) => {
    const tile = list.children[n] ?? list.appendChild(document.createElement("div"));
    tile.replaceChildren(element("dt", name), element("dd", value), element("dd", note, `note ${mark ?? ""}`));
  });
}

function errorTile(name, error, mean, biases, metric) {
  const floor = Math.min(mean ?? Infinity, biases ?? Infinity);
  const gain = error === null || !Number.isFinite(floor) || floor === 0 ? null : 1 - error / floor;
  return [`${name} (${metric === "rmse" ? "RMSE" : "log loss"})`, number(error), ...compared(gain, floor === mean ? "the mean" : "biases")];
}

function forecastTiles(snapshot) {
  const { forecasts, unknown_forecasts: unknown, forecast_coverage: coverage, forecast_case: late, late_90: most } = snapshot;
  const tiles = [errorTile("error of forecasts", snapshot.forecast_error, snapshot.forecast_floor_mean, snapshot.forecast_floor_biases, snapshot.metric)];
  if (coverage !== null) tiles.push(["forecasts in 90 % intervals", `${number(coverage * 100, 3)} %`, "should be 90 %"]);
  const notes = [late, most === null ? "" : `90 % within ${duration(most)}`, unknown ? `${number(unknown)} not known` : ""];
  tiles.push(["forecasts scored", number(forecasts), notes.filter(Boolean).join(", ")]);
  return tiles;
}

function compared(gain, floor) {
  if (gain === null) return ["nothing to compare yet", ""];
  if (Math.abs(gain) < 0.005) return [`level with ${floor}`, ""];
  const word = gain > 0 ? "better" : "worse";
  return [`${number(Math.abs(gain) * 100, 2)} % ${word} than ${floor}`, word];
}

const duration = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`);
const ago = (seconds) => `${duration(seconds)} ago`;
const bytes = (n) => (n === null ? "–" : n < 1e6 ? `${number(n / 1e3, 3)} kB` : `${number(n / 1e6, 3)} MB`);

let alarmsShown = "";
function showAlarms(alarms) {
  const now = JSON.stringify(alarms.map(({ kind, text }) => [kind, text]));
  if (now === alarmsShown) return; // else a screen reader would read them again
  alarmsShown = now;
  byId("alarms").replaceChildren(...alarms.map(({ kind, text }) => element("li", `${kind}: ${text}`)));
}

let surprisesShown = "";
function showSurprises({ surprises, modes, value, kind, read_only: readOnly }) {
  byId("surprises-section").hidden = readOnly;
  const now = JSON.stringify(surprises);
  if (readOnly || now === surprisesShown) return;
  surprisesShown = now;
  byId("no-surprises").hidden = surprises.length > 0;
  const regression = kind !== "SpiderClassifier";
  const numbers = regression ? [value, "predicted", "± std", "std away"] : [value, "predicted probability of 1"];
  const heads = [element("th", "time"), ...modes.map((mode) => element("th", mode)), ...numbers.map((name) => element("th", name, "number"))];
  for (const head of heads) head.scope = "col";
  const top = document.createElement("tr");
  top.append(...heads);
  byId("surprises").tHead.replaceChildren(top);
  byId("surprises").tBodies[0].replaceChildren(
    ...surprises.map((each) => {
      const row = document.createElement("tr");
      const figures = regression ? [each.value, each.mean, each.std, each.z] : [each.value, each.mean];
      row.append(
        element("td", new Date(each.time * 1000).toLocaleTimeString("en-GB")),
        ...each.ids.map((id) => element("td", String(id))),
        ...figures.map((figure) => element("td", number(figure, 3), "number")),
      );
      return row;
    }),
  );
}

// --- questions

let asked = null; // the modes that the forms have fields for, as JSON
function showForms(modes) {
  if (JSON.stringify(modes) === asked) return;
  asked = JSON.stringify(modes);
  byId("predict").querySelector(".ids").replaceChildren(...modes.map(field));
  const over = byId("recommend").elements.over;
  over.replaceChildren(...modes.map((mode) => element("option", mode)));
  over.selectedIndex = modes.length - 1;
  const given = () => byId("recommend").querySelector(".ids").replaceChildren(...modes.filter((_, n) => n !== over.selectedIndex).map(field));
  over.onchange = given;
  given();
}

function field(mode) {
  const label = element("label", mode);
  const input = document.createElement("input");
  input.dataset.mode = mode;
  input.required = true;
  label.append(input);
  return label;
}

// The ids of a form as JSON. 42 is sent as a number if the mode has integer ids, else as a text. A number is sent
// as typed, since JavaScript would round a long one.
async function ids(form) {
  const { id_kinds: kinds } = await answer("v1/model");
  const parts = [...form.querySelectorAll("[data-mode]")].map((input) => {
    const of = kinds?.[input.dataset.mode] ?? [];
    const isNumber = /^-?(0|[1-9]\d*)$/.test(input.value) && of.includes("int");
    return `${JSON.stringify(input.dataset.mode)}:${isNumber ? input.value : JSON.stringify(input.value)}`;
  });
  return `{${parts.join(",")}}`;
}

async function answer(path, body) {
  const request = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body };
  const response = await fetch(path, request);
  const content = await response.json();
  if (!response.ok) throw new Error([content.error.message, content.error.remedy].filter(Boolean).join(": "));
  return content;
}

function asks(form, question) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const output = form.querySelector("output");
    output.replaceChildren(element("span", "…"));
    try {
      output.replaceChildren(...(await question(form)));
    } catch (error) {
      output.replaceChildren(element("p", error.message, "problem"));
    }
  });
}

function unseen(seen) {
  const modes = Object.keys(seen).filter((mode) => !seen[mode]);
  return modes.length ? [element("p", `Never seen before: this ${modes.join(", this ")}.`, "note")] : [];
}

asks(byId("predict"), async (form) => {
  const regression = latest?.kind !== "SpiderClassifier";
  const { predictions } = await answer(`v1/predict${regression ? "?interval=0.9" : ""}`, `[${await ids(form)}]`);
  const { mean, std, low, high, seen, probability } = predictions[0];
  const found = regression
    ? [element("p", `${number(mean)} ± ${number(std, 3)}`, "answer"), element("p", `between ${number(low)} and ${number(high)} nine times in ten`)]
    : [element("p", `${number(probability * 100, 3)} %`, "answer"), element("p", `probability that ${latest.value} is 1`)];
  return [...found, ...unseen(seen)];
});

asks(byId("recommend"), async (form) => {
  const over = form.elements.over.value;
  const { nodes, seen } = await answer("v1/recommend", `{"over":${JSON.stringify(over)},"given":${await ids(form)}}`);
  const list = document.createElement("ol");
  list.append(
    ...nodes.map(({ id, mean, std, probability }) =>
      element("li", probability === undefined ? `${id}: ${number(mean)} ± ${number(std, 3)}` : `${id}: ${number(probability * 100, 3)} %`),
    ),
  );
  return [list, ...unseen(seen)];
});

// --- the time window

byId("windows").addEventListener("click", (event) => {
  if (event.target === byId("unzoom")) charts.zoom(null);
  else if (event.target.dataset.seconds !== undefined) {
    for (const button of byId("windows").querySelectorAll("[data-seconds]")) {
      button.setAttribute("aria-pressed", String(button === event.target));
    }
    charts.show(event.target.dataset.seconds === "" ? null : Number(event.target.dataset.seconds));
  }
});

listen();
