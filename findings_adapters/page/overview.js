// The overview: whether findings become more or fewer, where they are, and the latest runs.

import { changeOf, Trend } from "./chart.js";
import { controlOf, targetName, Where } from "./filters.js";
import { useKeys } from "./keys.js";
import { html, useAnswer, usePage, useStore } from "./lib.js";
import { News } from "./lists.js";
import { Heading, Loaded, NoneListed, Nothing, Select, Severity, Text } from "./parts.js";
import { link, toFindings } from "./route.js";
import { FindingRows } from "./rows.js";
import { RunTable } from "./runs.js";
import { number, SEVERITIES, UNRESOLVED } from "./words.js";

const MOST = 5; // rows of a card
const PERIODS = [["14", "14 days"], ["", "30 days"], ["90", "90 days"]];
const WEEK = 7; // days of the figures
const NOUNS = { branch: "branch", targetUrl: "target", projectType: "type", severity: "severity" };

export function Overview({ query }) {
	const { api, changes, router, session } = usePage();
	const { me } = useStore(session);
	const { projectType, targetUrl, branch, days } = query;
	const where = { projectType, targetUrl, branch };
	const mainLine = branch ? "" : "true";
	const list = { ...where, mainLine, status: UNRESOLVED };
	const createdSince = new Date(Date.now() - (WEEK - 1) * 86_400_000).toISOString().slice(0, 10); // today is the seventh day
	const counted = [{ status: "", createdSince }, { assigned: "false" }, { assignee: me.user ?? me.key }].map((fields) => ({ ...list, ...fields }));
	const asked = { ...where, days: (["14", "90"].includes(days) ? Number(days) : 30) + 1 }; // the first day is what the others are compared with
	const overview = useAnswer("overview", asked, async (get, signal) => {
		await null; // the service handles slow requests one by one: send the quick ones first
		const [{ data, etag }, ...lists] = await Promise.all(
			[api.request("GET", "overview", { query: asked, signal }), ...counted.map((each) => get("tasks", { ...each, limit: 1 }))]);
		const groups = SEVERITIES.map((value) => ({ value, byStatus: data.bySeverity[value] }));
		return { ...data, groups, totals: lists.map(({ total }) => total), query: asked, etag };
	});
	const runs = useAnswer("runs", { ...where, mainLine, limit: MOST });
	const change = (fields) => router.go(link("overview", null, { ...where, days, ...fields, mainLine: "" }));
	const reload = () => changes.changed.set([]); // of all cards
	useKeys({ r: reload });
	const isReady = overview.data && runs.data; // figures wait for both: zeros without data would look like an all-clear
	const isEmpty = isReady && overview.data.total === 0 && runs.data.runs.every(({ status }) => status !== "completed");
	const chosen = Object.keys(NOUNS).find((name) => where[name]);
	return html`
		<${Heading} title="Overview" total=${branch ? html`Branch <${Text} of=${branch} />` : "Main branch"}>
			<${News} kind="overview" ...${overview} reload=${reload} /><//>
		<search class="filters"><div class="grid">
			<${Where} query=${{ ...query, mainLine }} onChange=${change} one ready=${!!isReady} />
			<${Select} ...${controlOf("days", query, change)} label="Period" options=${PERIODS} />
		</div></search>
		${isEmpty
			? chosen
				? html`<${Nothing} title="No data for this ${NOUNS[chosen]}."><p><a href=${link("overview")}>Show all data</a></p><//>`
				: html`<${NoneListed} what="finding" view="findings" isFiltered />`
			: html`
				${!overview.error && html`<ul class="figures">${isReady
					? html`<${Figures} ...${overview.data} list=${list} counted=${counted} />`
					: [1, 2, 3, 4, 5].map(() => html`<li class="card" aria-busy="true"></li>`)}</ul>`}
				<${Cards} overview=${overview} list=${list} />`}
		<div class="cards">
			<${Card} title="Latest runs" kind="wide" from=${runs}>${({ runs: items }) => (items.length
				? html`<${RunTable} items=${items} /><p><a href=${link("runs", null, { ...where, mainLine })}>View all runs</a></p>`
				: html`<p class="muted">No runs yet.</p>`)}<//>
		</div>`;
}

function Figures({ days, totals, list, counted }) {
	const sum = (name) => days.slice(-WEEK).reduce((total, day) => total + day[name], 0);
	const [now, resolved, dismissed] = [days.at(-1).unfinished, sum("resolved"), sum("dismissed")];
	const { sign, text } = changeOf(now, days.at(-WEEK - 1).unfinished, days.at(-WEEK).date);
	return [
		["Unresolved", now, list, html`<span class=${sign === "▲" ? "opened" : "closed"} aria-hidden="true">${sign}</span> ${text}`],
		["New in 7 days", totals[0], counted[0]],
		["Closed in 7 days", resolved + dismissed, null, `${number(resolved)} resolved, ${number(dismissed)} dismissed`],
		["Unassigned", totals[1], counted[1]],
		["Assigned to me", totals[2], counted[2]],
	].map(([name, total, to, more]) => {
		const figure = html`<strong>${number(total)}</strong> ${name}`;
		return html`<li class="card">${to ? html`<a href=${toFindings(to)}>${figure}</a>` : figure}<p class="muted">${more}</p></li>`;
	});
}

function Cards({ overview, list }) {
	const oldest = { ...list, severity: "critical", sort: "createdAt" };
	return html`
		<div class="cards">
			<${Card} title="Trend" kind="wide trend" from=${overview}>${({ days }) => html`<${Trend} days=${days} />`}<//>
			<${Bars} by="severity" kind="pair" list=${list} from=${overview} />
			<${Card} title="Oldest critical findings" kind="pair oldest" from=${useAnswer("tasks", { ...oldest, limit: MOST - 1 })}>
				${({ tasks, total }) => (total === 0
					? html`<p class="muted">No unresolved critical findings.</p>`
					: html`<${FindingRows} tasks=${tasks} list=${oldest} whose /><p><a href=${toFindings(oldest)}>View all ${number(total)}</a></p>`)}
			<//>
			${["projectType", "targetUrl"].map((by) => html`<${Bars} by=${by} list=${list} from=${useAnswer("groups", { ...list, by, limit: MOST })} />`)}
		</div>`;
}

const Card = ({ title, kind = "", from, children }) => html`
	<section class="card ${kind}" aria-busy=${from.loading}>
		<h2>${title}</h2><${Loaded} from=${from} what=${title.toLowerCase()}>${children}<//>
	</section>`;

/** Show the number of unresolved findings of each group as a bar. The group without a value has no link. */
const Bars = ({ by, list, ...card }) => html`
	<${Card} title="Unresolved by ${NOUNS[by]}" ...${card}>${({ groups, others }) => {
		const rows = groups.map(({ value, byStatus }) => ({ value, total: byStatus.open + byStatus.in_progress }));
		const most = Math.max(...rows.map(({ total }) => total), 1);
		const isSeverity = by === "severity";
		if (!rows.length) return html`<p class="muted">Nothing unresolved.</p>`;
		return html`
			<table class="bars" aria-label="By ${NOUNS[by]}"><tbody>
				${rows.map(({ value, total }) => html`
					<tr>
						<th scope="row">${isSeverity
							? html`<${Severity} is=${value} />`
							: html`<${Text} of=${by === "targetUrl" ? targetName({ targetUrl: value }) : value} missing="None" />`}</th>
						<td class="bar ${isSeverity ? `severity-${value}` : ""}"><svg aria-hidden="true"><rect width="${(100 * total) / most}%" height="100%" rx="3" /></svg></td>
						<td class="number">${value ? html`<a href=${toFindings({ ...list, [by]: value })}>${number(total)}</a>` : number(total)}</td>
					</tr>`)}
			</tbody></table>
			${others > 0 && html`<p><a href=${toFindings({ ...list, group: by })}>${number(others)} more</a></p>`}`;
	}}<//>`;
