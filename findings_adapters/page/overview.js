// How things stand: open findings, what came and went in thirty days, and the latest runs.

import { pathOf } from "./api.js";
import { placeOf } from "./filters.js";
import { html, useLoad, useState, usePage, useStore } from "./lib.js";
import { Bar, Heading, HowToSend, Loaded, Nothing, Severity, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { Submitted } from "./runs.js";
import { number, SEVERITIES } from "./words.js";

const RUNS = 6;
const MOST_BARS = 8;
const OPEN = { status: "open", mainLine: "true" }; // what the overview counts as open

async function loadRuns({ get }, signal) {
	const { runs } = await get("runs", { limit: RUNS }, signal);
	const gate = (run) => (run.status === "completed" ? get(pathOf("runs", run.id, "/gate"), {}, signal) : null);
	return Promise.all(runs.map(async (run) => ({ run, gate: await gate(run) })));
}

export function Overview() {
	const { api, changes } = usePage();
	const turn = useStore(changes.changed);
	const overview = useLoad((signal) => api.get("overview", {}, signal), [turn]);
	const runs = useLoad((signal) => loadRuns(api, signal), [turn]);
	return html`
		<${Heading} title="Overview"><p class="total">What the main line knows</p><//>
		<${Loaded} from=${overview} what="the overview">
			${(data) => (data.total === 0 && runs.data?.length === 0
				? html`<${Nothing} title="No findings yet"><${HowToSend} /><//>`
				: html`<${Figures} of=${data} />`)}
		<//>
		<${Card} title="Latest runs">
			<${Loaded} from=${runs} what="the latest runs">${(latest) => html`<${LatestRuns} of=${latest} />`}<//>
		<//>`;
}

const Card = ({ title, wide, children }) => html`<section class="card ${wide ? "wide" : ""}"><h2>${title}</h2>${children}</section>`;

const Figures = ({ of }) => html`
	<div class="cards">
		<${Card} title="Open by severity">
			<${Bars} caption="Open findings by severity" rows=${SEVERITIES.map((name) => ({
				name: html`<${Severity} is=${name} />`, to: { severity: name }, open: of.bySeverity[name].open, kind: `severity-${name}` }))} />
		<//>
		<${Card} title="Open by type">
			<${Bars} caption="Open findings by project type" rows=${of.byProjectType.map(({ projectType, open }) => ({
				name: html`<${Text} of=${projectType} />`, to: { projectType }, open }))} />
		<//>
		<${Card} title="Open by target">
			<${Bars} caption="Open findings by target" rows=${of.byTarget.map(({ targetUrl, open }) => ({
				name: html`<${Text} of=${placeOf({ targetUrl })} missing="Without a target" />`, to: targetUrl && { targetUrl }, open }))} />
		<//>
		<${Card} title="Created and resolved" wide><${Days} days=${of.days} /><//>
	</div>`;

function Bars({ caption, rows }) {
	const [all, setAll] = useState(false);
	const most = Math.max(...rows.map((row) => row.open), 1);
	const shown = all ? rows : rows.slice(0, MOST_BARS);
	if (!rows.length) return html`<p class="muted">None yet.</p>`;
	return html`
		<table class="bars">
			<caption class="hidden">${caption}</caption>
			<tbody>
				${shown.map(({ name, to, open, kind }) => html`
					<tr>
						<th scope="row">${to ? html`<a href=${link("findings", null, { ...OPEN, ...to, sort: "severity" })}>${name}</a>` : name}</th>
						<td aria-hidden="true"><${Bar} part=${open} whole=${most} kind=${kind} /></td>
						<td class="number">${number(open)}</td>
					</tr>`)}
			</tbody>
		</table>
		${rows.length > shown.length && html`<button class="quiet" onClick=${() => setAll(true)}>Show all ${number(rows.length)}</button>`}`;
}

const LINES = { created: "Created", resolved: "Resolved" };

function Days({ days }) {
	const sum = (name) => days.reduce((total, day) => total + day[name], 0);
	const most = Math.max(...days.flatMap((day) => Object.keys(LINES).map((name) => day[name])), 1);
	const points = (name) => days.map((day, index) => `${(300 * index) / Math.max(days.length - 1, 1)},${100 - (96 * day[name]) / most}`);
	const told = Object.entries(LINES).map(([name, words]) => `${number(sum(name))} ${words.toLowerCase()}`).join(", ");
	return html`
		<figure>
			<div class="chart">
				<span class="most" aria-hidden="true">${number(most)}</span>
				<svg viewBox="0 0 300 100" preserveAspectRatio="none" role="img" aria-label="In ${days.length} days: ${told}">
					<path class="ground" d="M0 100H300M0 52H300M0 4H300" />
					${Object.keys(LINES).map((name) => html`<polyline class=${name} points=${points(name).join(" ")} />`)}
				</svg>
				<div class="ends" aria-hidden="true"><span>${days[0]?.date}</span><span>${days.at(-1)?.date}</span></div>
			</div>
			<figcaption>
				${Object.entries(LINES).map(([name, words]) => html`<span class="key ${name}">${words} ${number(sum(name))}</span>`)}
				<span class="muted">Reopened ${number(sum("reopened"))}, dismissed ${number(sum("dismissed"))}</span>
			</figcaption>
			<details><summary>By day</summary><${DayTable} days=${days} /></details>
		</figure>`;
}

const DayTable = ({ days }) => html`
	<table class="plain days">
		<thead><tr>${["Day", "Created", "Reopened", "Resolved", "Dismissed"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
		<tbody>
			${days.toReversed().map((day) => html`
				<tr><th scope="row">${day.date}</th>
					${["created", "reopened", "resolved", "dismissed"].map((name) => html`<td class="number">${number(day[name])}</td>`)}</tr>`)}
		</tbody>
	</table>`;

function LatestRuns({ of }) {
	if (!of.length) return html`<p class="muted">No run yet.</p>`;
	return html`
		<ul class="rows">
			${of.map(({ run, gate }) => html`
				<li>
					<span class="what"><a href=${link("runs", run.id)}><${Text} of=${run.projectType} /></a>
						${run.targetUrl && html` <span class="muted"><${Text} of=${run.targetUrl} /></span>`}
						${run.branch && html` <span class="kind"><${Text} of=${run.branch} /></span>`}</span>
					<span>${gate ? html`<${Verdict} gate=${gate} />` : html`<${Status} is=${run.status} />`}</span>
					<span><${Submitted} of=${run.submitted} /></span>
					<span class="muted"><${Time} at=${run.createdAt} /></span>
				</li>`)}
		</ul>
		<p><a href=${link("runs")}>All runs</a></p>`;
}
