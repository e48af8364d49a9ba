// How things stand: what is unfinished, whose it is, how it came to that, and the latest runs.

import { pathOf } from "./api.js";
import { Trend } from "./chart.js";
import { placeOf, Where } from "./filters.js";
import { html, useAnswer, usePage, useStore } from "./lib.js";
import { Heading, HowToSend, Loaded, Nothing, Select, Severity, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { FindingRows, toFindings } from "./run.js";
import { Submitted } from "./runs.js";
import { number, SEVERITIES } from "./words.js";

const MOST = 6; // rows of a card
const DAYS = [["7", "7 days"], ["", "30 days"], ["90", "90 days"]];

export function Overview({ query }) {
	const { router, session } = usePage();
	const { me } = useStore(session);
	const { projectType, targetUrl, branch } = query;
	const where = { projectType, targetUrl, branch };
	const mainLine = branch ? "" : "true";
	const days = DAYS.some(([name]) => name === query.days) ? query.days : "";
	const list = { ...where, mainLine, status: "open,in_progress", sort: "severity" }; // what all numbers are of
	const change = (fields) => router.go(link("overview", null, { ...where, days, ...fields, mainLine: "" }));
	const overview = useAnswer("overview", { ...where, days }, async (api, signal) => {
		await null; // the cards ask first, whose answers are quick: of what is slow, the service gives one at a time
		return api.get("overview", { ...where, days }, signal);
	});
	const runs = useAnswer("runs", { ...where, limit: MOST }, (api, signal) => loadRuns(api, where, signal));
	const isNew = overview.data?.total === 0 && runs.data?.length === 0 && !projectType && !targetUrl && !branch;
	return html`
		<${Heading} title="Overview"><p class="total">${branch ? "What a branch has reported" : "What the main line knows"}</p><//>
		${isNew ? html`<${Nothing} title="No findings yet"><${HowToSend} /><//>` : html`
			<search class="filters"><div class="grid">
				<${Where} query=${{ ...query, mainLine }} onChange=${change} one />
				<${Select} label="Trend" value=${days} options=${DAYS} onChange=${(wanted) => change({ days: wanted })} />
			</div></search>
			<ul class="figures">
				<${Figure} name="Unfinished" list=${list} />
				<${Figure} name="Unassigned" list=${{ ...list, assigned: "false" }} load=${countUnassigned} />
				<${Figure} name="Mine" list=${{ ...list, assignee: me.user ?? me.key }} />
			</ul>
			<div class="cards">
				<${Card} title="Unfinished by severity" from=${overview}>
					${({ bySeverity }) => html`<${Bars} what="Severity" list=${list} rows=${SEVERITIES.map((severity) => ({
						name: html`<${Severity} is=${severity} />`, to: { severity }, byStatus: bySeverity[severity], kind: `severity-${severity}` }))} />`}
				<//>
				<${Oldest} list=${{ ...list, severity: "critical", sort: "createdAt" }} />
				<${Groups} what="Type" by="projectType" list=${list} />
				<${Groups} what="Target" by="targetUrl" list=${list} />
				<${Card} title="Trend" wide from=${overview}>${(data) => html`<${Trend} days=${data.days} />`}<//>
				<${Card} title="Latest runs" wide from=${runs}>${(latest) => html`<${LatestRuns} of=${latest} where=${where} />`}<//>
			</div>`}`;
}

const Card = ({ title, wide, from, children }) => html`
	<section class="card ${wide ? "wide" : ""}">
		<h2>${title}</h2><${Loaded} from=${from} what=${title.toLowerCase()}>${children}<//>
	</section>`;

/** Count by groups, which counters tell: asked for by itself, each finding is looked at. Only the largest are listed. */
async function countUnassigned(api, { sort, assigned, ...list }, signal) {
	const { groups, others } = await api.get("groups", { ...list, by: "assignee", limit: 200 }, signal);
	const nobody = groups.find(({ value }) => value === null);
	return nobody || !others ? { total: nobody?.total ?? 0 } : countAll(api, { ...list, assigned }, signal);
}

const countAll = (api, { sort, ...list }, signal) => api.get("tasks", { ...list, limit: 1 }, signal);

const Figure = ({ name, list, load = countAll }) => html`
	<li class="card"><${Loaded} from=${useAnswer("tasks", list, (api, signal) => load(api, list, signal))} what=${name.toLowerCase()}>
		${({ total }) => html`<a href=${toFindings(list)}><strong>${number(total)}</strong> ${name}</a>`}<//></li>`;

const Oldest = ({ list }) => html`
	<${Card} title="Oldest criticals" from=${useAnswer("tasks", { ...list, limit: MOST - 1 })}>
		${({ tasks, total }) => (total === 0
			? html`<p class="muted">No critical finding is unfinished.</p>`
			: html`<${FindingRows} tasks=${tasks} whose /><p><a href=${toFindings(list)}>All ${number(total)}, oldest first</a></p>`)}
	<//>`;

const Groups = ({ what, by, list: { sort, ...list } }) => html`
	<${Card} title="Unfinished by ${what.toLowerCase()}" from=${useAnswer("groups", { ...list, by, limit: MOST })}>
		${({ groups, others }) => html`
			<${Bars} what=${what} list=${{ ...list, sort }} rows=${groups.map(({ value, byStatus }) => ({
				name: html`<${Text} of=${by === "targetUrl" ? placeOf({ targetUrl: value }) : value} missing="None" />`,
				to: value && { [by]: value }, byStatus }))} />
			${others > 0 && html`<p><a href=${toFindings({ ...list, group: by })}>${number(others)} in others</a></p>`}`}
	<//>`;

function Bars({ what, list, rows }) {
	const most = Math.max(...rows.map(({ byStatus }) => byStatus.open + byStatus.in_progress), 1);
	if (!rows.length) return html`<p class="muted">Nothing is unfinished.</p>`;
	return html`
		<table class="bars">
			<thead><tr><th scope="col">${what}</th><td></td>
				<th scope="col" class="number">Unfinished</th><th scope="col" class="number">In progress</th></tr></thead>
			<tbody>
				${rows.map(({ name, to, byStatus: { open, in_progress: begun }, kind = "" }) => html`
					<tr>
						<th scope="row">${name}</th>
						<td><svg class="bar ${kind}" aria-hidden="true" preserveAspectRatio="none" viewBox="0 0 ${most} 1">
							<rect width=${open} height="1" /><rect class="begun" x=${open} width=${begun} height="1" /></svg></td>
						<${Count} of=${open + begun} to=${to && { ...list, ...to }} />
						<${Count} of=${begun} to=${to && { ...list, ...to, status: "in_progress" }} />
					</tr>`)}
			</tbody>
		</table>`;
}

const Count = ({ of, to }) => html`<td class="number">${to ? html`<a href=${toFindings(to)}>${number(of)}</a>` : number(of)}</td>`;

async function loadRuns(api, where, signal) {
	const { runs } = await api.get("runs", { ...where, limit: MOST }, signal);
	const gate = (run) => (run.status === "completed" ? api.get(pathOf("runs", run.id, "/gate"), {}, signal) : null);
	return Promise.all(runs.map(async (run) => ({ run, gate: await gate(run) })));
}

const LatestRuns = ({ of, where }) => html`
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
	<p>${of.length ? html`<a href=${link("runs", null, where)}>All runs</a>` : html`<span class="muted">No run yet.</span>`}</p>`;
