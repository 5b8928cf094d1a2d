"use strict";
// The owner's console: asks the node once a second, draws what it says. Text goes in as text, never as markup.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let token = sessionStorage.getItem("sfumato-token") || "";
let state = null;
let timer = 0;
let planned = 0;

async function call(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const answer = await fetch(path, options);
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.error || "The node refused."), { code: said.code });
  return said;
}

// -- drawing ------------------------------------------------------------------------------------------------------

const number = (value, digits = 3) => {
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(digits)).toString();
};
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const when = (text) => (text ? text.slice(0, 19).replace("T", " ") : "");

function shape(name, facts, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(facts)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function cell(content, kind) {
  const made = document.createElement("td");
  if (kind) made.className = kind;
  if (content instanceof Node) made.append(content);
  else made.textContent = content;
  return made;
}

function rows(id, lines, empty, width) {
  const body = $(id);
  const kept = document.activeElement && body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  body.replaceChildren(...lines.map((cells) => {
    const line = document.createElement("tr");
    line.append(...cells);
    return line;
  }));
  if (!lines.length) {
    const line = document.createElement("tr");
    const only = cell(empty, "none");
    only.colSpan = width;
    line.append(only);
    body.append(line);
  }
  if (kept) for (const button of body.querySelectorAll("button")) if (button.dataset.key === kept) button.focus();
}

function spent(amount) {
  const span = document.createElement("span");
  if (!amount) {
    span.textContent = "–";
    return span;
  }
  const meter = document.createElement("meter");
  meter.max = 1;
  meter.value = amount.cap ? amount.spent / amount.cap : 0;
  meter.setAttribute("aria-hidden", "true");
  span.append(meter, percent(meter.value));
  span.title = `μ² ${number(amount.spent)} of ${number(amount.cap)}`;
  return span;
}

function drawGauge(budget) {
  const left = Math.max(0, 1 - budget.spent / budget.cap);
  $("gauge").setAttribute("stroke-dasharray", `${100 * left} 100`);
  $("gauge").style.strokeDasharray = `${100 * left} 100`;
  $("gauge").style.visibility = left < 0.004 ? "hidden" : "visible";
  $("gauge").classList.toggle("few", left < 0.1);
  $("left-share").textContent = percent(left);
  $("gauge-text").textContent =
    `μ² ${number(budget.cap - budget.spent, 4)} left of ${number(budget.cap, 4)}, the cap of ε = ${number(budget.epsilon)}, ` +
    `δ = ${budget.delta.toExponential(0)}. Open reservations count as spent.`;
  $("gauge").dataset.left = budget.cap - budget.spent;
}

function drawCurve(budget, curve) {
  const svg = $("curve");
  const points = curve.length ? curve : [[state.now, 0]];
  const first = points[0][0];
  const span = Math.max(state.now - first, 1);
  const top = budget.cap;
  const x = (at) => 4 + (312 * (at - first)) / span;
  const y = (value) => 116 - (100 * value) / top;
  const path = [`${x(first)},${y(0)}`];
  let before = 0;
  for (const [at, value] of points) {
    path.push(`${x(at)},${y(before)}`, `${x(at)},${y(value)}`);
    before = value;
  }
  path.push(`${x(state.now)},${y(before)}`);
  svg.replaceChildren(
    shape("line", { x1: 4, x2: 316, y1: 116, y2: 116 }),
    shape("line", { x1: 4, x2: 316, y1: y(top), y2: y(top), class: "limit" }),
    shape("polyline", { points: [...path, `${x(state.now)},116`, `${x(first)},116`].join(" "), class: "area" }),
    shape("polyline", { points: path.join(" ") }),
    shape("text", { x: 4, y: 12 }, "cap"),
    shape("text", { x: 4, y: 129 }, curve.length ? when(new Date(first * 1000).toISOString()).slice(0, 16) : ""),
    shape("text", { x: 316, y: 129, class: "end" }, "now"),
  );
  $("curve-text").textContent = `μ² ${number(before, 4)} spent by ${state.analysts} analyst${state.analysts === 1 ? "" : "s"} in ${state.answers.toLocaleString("en")} answers.`;
}

function drawRates(rates) {
  const most = Math.max(...rates);
  const top = Math.max(most, 1);
  $("rates").replaceChildren(
    shape("line", { x1: 0, x2: 320, y1: 69, y2: 69 }),
    ...rates.map((rate, i) => shape("rect", { x: (320 * i) / rates.length, width: 320 / rates.length - 1, y: 69 - (66 * rate) / top, height: (66 * rate) / top })),
  );
  $("rate").textContent = number(rates[rates.length - 1]);
  $("rate-text").textContent = `The last sixty seconds; at most ${number(most)} a second. ${state.connections} connection${state.connections === 1 ? "" : "s"} open.`;
}

function shortRun(run) {
  return run.startsWith("estimate-") ? `estimate ${run.slice(9, 17)}` : run.slice(0, 8);
}

function draw() {
  $("name").textContent = state.name;
  document.title = `${state.paused ? "Paused: " : ""}${state.name} · sfumato node`;
  $("state").textContent = state.paused ? "paused" : "serving";
  $("state").className = state.paused ? "pill paused" : "pill";
  $("pause").textContent = state.paused ? "Resume answers" : "Pause answers";
  $("version").textContent = `sfumato ${state.version}; ledger head ${state.head.slice(0, 18)}…`;
  drawGauge(state.budget);
  drawCurve(state.budget, state.curve);
  drawRates(state.rates);
  rows("runs", state.runs.map((run) => [
    cell(run.study), cell(run.analyst), cell(shortRun(run.run) + (run.sealed ? " (sealed)" : "")), cell(when(run.opened)),
    cell(run.answers.toLocaleString("en")), cell(spent(run.budget)), cell(run.state, run.state === "connected" ? "good" : "none"),
  ]), "No run has been opened yet.", 7);
  rows("tokens", state.tokens.map((line) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Revoke";
    button.dataset.key = line.name;
    button.setAttribute("aria-label", `Revoke ${line.name}`);
    button.addEventListener("click", () => revoke(line.name));
    return [
      cell(line.name), cell(line.kind), cell(line.expires ? when(line.expires) : "never"), cell(spent(line.budget)),
      cell(line.state, line.state === "valid" ? "good" : "bad"), cell(line.state === "valid" && !line.self ? button : ""),
    ];
  }), "No tokens.", 6);
  $("statement").textContent = state.statement;
  showConsortium(state.consortium);
  rows("log", state.log.map((line) => [
    cell(when(line.at)), cell(line.event), cell(line.who || ""), cell(line.what || "", "wrap"),
  ]), "Nothing yet.", 4);
  if (!$("study").options.length) startPlanner();
}

// -- asking -------------------------------------------------------------------------------------------------------

async function refresh() {
  window.clearTimeout(timer);
  try {
    state = await call("api/console/state");
    $("trouble").textContent = "";
    show(true);
    draw();
  } catch (error) {
    if (["unauthorised", "forbidden", "revoked"].includes(error.code)) return signOut(error.message);
    $("trouble").textContent = `The node does not answer: ${error.message}`;
    $("state").textContent = "no answer";
    $("state").className = "pill lost";
  }
  timer = window.setTimeout(refresh, 1000);
}

function show(open) {
  $("login").hidden = open;
  $("console").hidden = !open;
  $("bar").hidden = !open;
}

function signOut(words) {
  token = "";
  state = null;
  sessionStorage.removeItem("sfumato-token");
  window.clearTimeout(timer);
  $("study").replaceChildren();
  show(false);
  $("wrong").textContent = words || "";
  $("token").focus();
}

async function act(path, body) {
  try {
    await call(path, body);
    await refresh();
  } catch (error) {
    $("trouble").textContent = error.message;
  }
}

function revoke(name) {
  $("ask-text").textContent = `Revoke the token of ${name}? Its connections are closed at once and it cannot be given back.`;
  $("ask").returnValue = "no";
  $("ask").onclose = () => { if ($("ask").returnValue === "yes") act("api/console/revoke", { name }); };
  $("ask").showModal();
}

// -- the planner --------------------------------------------------------------------------------------------------

const EXPONENTS = { epsilon: 2, delta: 1, records: 3 };
const exact = {}; // what the node itself has, until a slider is moved: its steps are coarse
const slid = (id) => exact[id] ?? Number(Math.pow(10, Number($(id).value)).toPrecision(EXPONENTS[id]));

function startPlanner() {
  $("study").replaceChildren(...state.studies.map((study) => new Option(study, study)));
  $("epsilon").value = Math.log10(state.budget.epsilon);
  $("delta").value = Math.log10(state.budget.delta);
  $("records").value = Math.log10(state.n);
  Object.assign(exact, { epsilon: state.budget.epsilon, delta: state.budget.delta, records: state.n });
  replan();
}

function labels() {
  $("epsilon-out").textContent = number(slid("epsilon"));
  $("delta-out").textContent = slid("delta").toExponential(0);
  $("records-out").textContent = Math.round(slid("records")).toLocaleString("en");
}

function fact(label, value, kind) {
  const box = document.createElement("div");
  const term = document.createElement("dt");
  const said = document.createElement("dd");
  term.textContent = label;
  said.textContent = value;
  if (kind) said.className = kind;
  box.append(term, said);
  return box;
}

function showConsortium(house) {
  $("consortium").hidden = !house;
  if (!house) return;
  const others = house.members.length - 1;
  $("consortium-text").textContent =
    `${house.name}: sums are sealed; ${house.colluders} of the ${others} others are assumed to work with an analyst. Against all of them `
    + `μ² ${number(house.everybody.spent, 4)} of ${number(house.everybody.cap, 4)} is spent. Compare fingerprints by telephone.`;
  $("roster").replaceChildren(...house.members.map((one) => fact(one.self ? `${one.name} (you)` : one.name, one.fingerprint)));
}

async function replan() {
  labels();
  const turn = ++planned;
  $("forecast").classList.add("stale");
  await new Promise((done) => window.setTimeout(done, 120));
  if (turn !== planned) return;
  const asked = { study: $("study").value, epsilon: slid("epsilon"), delta: slid("delta"), n: Math.round(slid("records")) };
  try {
    const plan = (await call("api/console/plan", asked)).plan;
    if (turn !== planned) return;
    $("forecast").replaceChildren(
      fact("Iterations", `${plan.chains} × ${plan.iterations.toLocaleString("en")}`),
      fact("Effective draws", number(plan.forecast_ess), plan.weak ? "bad" : "good"),
      fact("Of the one-shot limit", percent(plan.share_of_limit)),
      fact("Kernel", plan.kernel),
      fact("Noise σ", number(plan.sigma)),
      fact("μ of the cap", number(plan.mu, 4)),
    );
    $("forecast").dataset.ess = plan.forecast_ess;
    $("verdict").textContent = `${plan.weak ? "Too weak: the chain cannot mix on this. " : ""}Rests on: ${plan.assumptions.join("; ")}.`;
  } catch (error) {
    if (turn !== planned) return;
    $("forecast").replaceChildren(fact("No plan", "–"));
    $("verdict").textContent = error.message;
  }
  $("forecast").classList.remove("stale");
}

// -- wiring -------------------------------------------------------------------------------------------------------

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("sfumato-token", token);
  $("wrong").textContent = "";
  refresh();
});
$("pause").addEventListener("click", () => act(state && state.paused ? "api/console/resume" : "api/console/pause", {}));
$("leave").addEventListener("click", () => signOut(""));
$("planner").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["study", "epsilon", "delta", "records"]) {
  $(id).addEventListener("input", () => { delete exact[id]; replan(); });
}
$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("statement").textContent).then(
    () => { $("copied").textContent = "Copied."; }, () => { $("copied").textContent = "The browser does not allow it; select the text instead."; });
});
if (token) refresh(); else show(false);
