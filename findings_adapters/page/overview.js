// The overview: unfinished findings, assignees, trend and latest runs.

import { pathOf } from "./api.js";
import { Trend } from "./chart.js";
import { controlOf, placeOf, Where } from "./filters.js";
import { useKeys } from "./keys.js";
import { html, useAnswer, usePage, useStore } from "./lib.js";
import { News } from "./lists.js";
import { Heading, Loaded, NoneListed, Select, Severity, Text } from "./parts.js";
import { link } from "./route.js";
import { FindingRows, toFindings } from "./run.js";
import { RunTable } from "./runs.js";
import { number, SEVERITIES } from "./words.js";

const MOST = 6; // rows of a card
const DAYS = [["7", "7 days"], ["", "30 days"], ["90", "90 days"]];

export function Overview({ query }) {
	const { api, changes, router, session } = usePage();
	const { me } = useStore(session);
	const { projectType, targetUrl, branch, days } = query;
	const where = { projectType, targetUrl, branch };
	const mainLine = branch ? "" : "true";
	const list = { ...where, mainLine, status: "open,in_progress" }; // what all numbers are of
	const change = (fields) => router.go(link("overview", null, { ...where, days, ...fields, mainLine: "" }));
	const asked = { ...where, days: DAYS.some(([name]) => name === days) ? days : "" };
	const overview = useAnswer("overview", asked, async (_, signal) => {
		await null; // the cards' quick answers first: the service gives slow ones one at a time
		const { data, etag } = await api.request("GET", "overview", { query: asked, signal });
		return { ...data, query: asked, etag };
	});
	const runs = useAnswer("runs", { ...where, limit: MOST }, (get) => loadRuns(get, where));
	const reload = () => changes.changed.set([]); // all cards
	useKeys({ r: reload });
	const isNew = overview.data?.total === 0 && runs.data?.length === 0 && !Object.values(where).some(Boolean);
	return html`
		<${Heading} title="Overview" total=${branch ? "What a branch has reported" : "What the main line knows"}>
			<${News} kind="overview" ...${overview} reload=${reload} /><//>
		${isNew ? html`<${NoneListed} what="finding" />` : html`
			<search class="filters"><div class="grid">
				<${Where} query=${{ ...query, mainLine }} onChange=${change} one />
				<${Select} ...${controlOf("days", query, change)} label="Trend" options=${DAYS} />
			</div></search>
			<ul class="figures">
				<${Figure} name="Unfinished" list=${list} />
				<${Figure} name="Unassigned" list=${{ ...list, assigned: "false" }} />
				<${Figure} name="Mine" list=${{ ...list, assignee: me.user ?? me.key }} />
			</ul>
			<div class="cards">
				<${Card} title="Unfinished by severity" from=${overview}>${({ bySeverity }) => html`
					<${Bars} what="Severity" list=${list} rows=${SEVERITIES.map((severity) =>
						({ name: html`<${Severity} is=${severity} />`, to: { severity }, byStatus: bySeverity[severity] }))} />`}<//>
				<${Oldest} list=${{ ...list, severity: "critical", sort: "createdAt" }} />
				<${Groups} what="Type" by="projectType" list=${list} />
				<${Groups} what="Target" by="targetUrl" list=${list} />
				<${Card} title="Trend" wide from=${overview}>${(data) => html`<${Trend} days=${data.days} />`}<//>
				<${Card} title="Latest runs" wide from=${runs}>${(latest) => (latest.length
					? html`<${RunTable} items=${latest} /><p><a href=${link("runs", null, where)}>All runs</a></p>`
					: html`<p class="muted">No run yet.</p>`)}<//>
			</div>`}`;
}

const Card = ({ title, wide, from, children }) => html`
	<section class="card ${wide ? "wide" : ""}" aria-busy=${from.loading}>
		<h2>${title}</h2><${Loaded} from=${from} what=${title.toLowerCase()}>${children}<//>
	</section>`;

function Figure({ name, list }) {
	const tasks = useAnswer("tasks", { ...list, limit: 1 });
	return html`<li class="card" aria-busy=${tasks.loading}><${Loaded} from=${tasks} what=${name.toLowerCase()}>
		${({ total }) => html`<a href=${toFindings(list)}><strong>${number(total)}</strong> ${name}</a>`}<//></li>`;
}

const Oldest = ({ list }) => html`
	<${Card} title="Oldest criticals" from=${useAnswer("tasks", { ...list, limit: MOST - 1 })}>
		${({ tasks, total }) => (total === 0
			? html`<p class="muted">No critical finding is unfinished.</p>`
			: html`<${FindingRows} tasks=${tasks} whose /><p><a href=${toFindings(list)}>All ${number(total)}, oldest first</a></p>`)}
	<//>`;

const Groups = ({ what, by, list }) => html`
	<${Card} title="Unfinished by ${what.toLowerCase()}" from=${useAnswer("groups", { ...list, by, limit: MOST })}>
		${({ groups, others }) => html`
			<${Bars} what=${what} list=${list} rows=${groups.map(({ value, byStatus }) => ({
				name: html`<${Text} of=${by === "targetUrl" ? placeOf({ targetUrl: value }) : value} missing="None" />`,
				to: value && { [by]: value }, byStatus }))} />
			${others > 0 && html`<p><a href=${toFindings({ ...list, group: by })}>${number(others)} in others</a></p>`}`}
	<//>`;

/** Count what is unfinished and in progress by kind. Not every kind has a list, `to`. */
const Bars = ({ what, list, rows }) => (rows.length === 0 ? html`<p class="muted">Nothing is unfinished.</p>` : html`
	<table class="bars">
		<thead><tr><th scope="col">${what}</th><th scope="col" class="number">Unfinished</th><th scope="col" class="number">In progress</th></tr></thead>
		<tbody>
			${rows.map(({ name, to, byStatus: { open, in_progress: begun } }) => html`
				<tr>
					<th scope="row">${name}</th>
					${[[open + begun, list.status], [begun, "in_progress"]].map(([total, status]) => html`
						<td class="number">${to ? html`<a href=${toFindings({ ...list, ...to, status })}>${number(total)}</a>` : number(total)}</td>`)}
				</tr>`)}
		</tbody>
	</table>`);

async function loadRuns(get, where) {
	const { runs } = await get("runs", { ...where, limit: MOST });
	const gate = (run) => (run.status === "completed" ? get(pathOf("runs", run.id, "/gate")) : null);
	return Promise.all(runs.map(async (run) => ({ ...run, gate: await gate(run) })));
}
