// One run: its progress or verdict, its results, and the comparison with its baseline.

import { pathOf } from "./api.js";
import { html, useAnswer, useEffect, usePage, useReducer } from "./lib.js";
import { Fact, Heading, Loaded, Outside, Place, Section, Severity, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { FindingRows } from "./rows.js";
import { RunState } from "./runs.js";
import { commitOf } from "./source.js";
import { DeleteButton } from "./triage.js";
import { Value } from "./values.js";
import { count, duration, minute, number, SEVERITIES, STATUSES, UNRESOLVED } from "./words.js";

const LISTED = 50; // the most findings in a response of the gate
const PAUSE = 5; // seconds between two requests while a run is running

const toList = (query) => link("findings", null, { sort: "severity", ...query });

/** Load a run and, if it is completed, its comparison and the filters of lists that select what the gate counts. */
async function load(get, id) {
	const run = await get(pathOf("runs", id));
	const { branch, createdAt, verdict } = run;
	if (run.status !== "completed") return { run };
	const fresh = { newIn: id, status: branch ? `${UNRESOLVED},resolved` : UNRESOLVED };
	const back = { newIn: id, status: "resolved", mainLine: "true" };
	const [gate, since, { total }] = await Promise.all([
		verdict ?? get(pathOf("runs", id, "/gate")), // a run without a stored verdict is judged now
		get(pathOf("runs", id, "/gate"), { failOn: "info", only: "new" }),
		branch ? get("tasks", { ...back, limit: 1 }) : { total: 0 },
	]);
	return { run, gate, compared: { since, fresh, back, backTotal: total, gone: { missingFrom: id, createdBefore: createdAt } } };
}

/** Draw the elapsed time of a running run, and reload it when any findings change: then the list of runs has another ETag. */
function useProgress(isRunning, reload) {
	const { api } = usePage();
	const [, draw] = useReducer((turn) => turn + 1, 0);
	useEffect(() => {
		let seconds = 0;
		let known;
		const timer = isRunning && setInterval(async () => {
			draw();
			seconds += 1;
			if (seconds % PAUSE || document.hidden) return;
			const now = await api.request("GET", "runs", { query: { limit: 1 }, known }).catch(() => null);
			if (now) reload();
			known = now?.etag ?? known;
		}, 1000);
		return () => clearInterval(timer);
	}, [isRunning]);
}

export function Run({ id }) {
	const loaded = useAnswer("runs", id, (get) => load(get, id));
	useProgress(!loaded.error && loaded.data?.run.status === "running", loaded.reload);
	return html`<${Loaded} from=${loaded} what="the run" title="Run">${({ run, gate, compared }) => {
		const { createdAt, finishedAt, metadata, projectType, status } = run;
		const commit = commitOf(run);
		const lasted = duration((finishedAt ? Date.parse(finishedAt) : Date.now()) - Date.parse(createdAt));
		return html`
			<${Heading} title="${projectType} run · ${minute(createdAt)}">
				<p class="badges"><${RunState} run=${run} />${status === "running" && html` <span role="timer">${lasted}</span>`}</p><//>
			<div class="columns">
				<div>
					<${Judgement} run=${run} gate=${gate} />
					<${Results} run=${run} />
					${compared && html`<${Comparison} run=${run} ...${compared} />`}
					<${Section} title="Metadata" of=${Object.keys(metadata).length}><${Value} of=${metadata} /><//>
				</div>
				<aside aria-label="Facts">
					<dl class="facts">
						<${Place} of=${run} />
						<${Fact} name="Commit" of=${commit}><${Outside} href=${commit?.href}><code>${commit?.name}</code><//><//>
						<${Fact} name="Started"><${Time} at=${createdAt} long /><//>
						<${Fact} name="Duration" of=${finishedAt}>${lasted}<//>
						<${Fact} name="ID"><${Text} of=${id} /><//>
					</dl>
					<${DeleteButton} what="this run" path=${pathOf("runs", id)} to=${link("runs")}>Findings only this run reported are deleted too.<//>
				</aside>
			</div>`;
	}}<//>`;
}

function Judgement({ run: { status, statusReason, verdict }, gate }) {
	if (status === "failed") {
		const reason = statusReason === "timeout" ? "Timed out: it sent nothing for too long." : statusReason;
		return html`<section class="card"><h2>Run failed</h2><p class="lines"><${Text} of=${reason} missing="No reason given." /></p></section>`;
	}
	return html`
		<section class="card"><h2>Gate</h2><p><${Verdict} pass=${gate?.pass ?? null} />${" "}
			${verdict ? reasonOf(verdict) : html`<${Text} of=${gate?.reason ?? "Waiting for the run to finish."} />`}
			${gate && html` <span class="muted">Judged ${verdict ? "when the run finished" : "by the current status of its findings"}.</span>`}</p></section>`;
}

function reasonOf({ failOn, only, baseline, new: fresh, offenders }) {
	const since = baseline ? `${number(fresh)} new since the baseline` : "no baseline, so everything is new";
	if (failOn === "none") return `No severity fails this run; ${since}.`;
	const what = only === "new" ? "new finding" : "finding";
	return `${offenders ? count(offenders, what) : `No ${what}s`} of severity ${failOn}${failOn === "critical" ? "" : " or higher"}; ${since}.`;
}

function Comparison({ run: { id, submitted, summary }, since, fresh, back, backTotal, gone }) {
	const missing = useAnswer("tasks", { ...gone, sort: "severity", limit: LISTED }); // a slow request
	const { baseline, ignored, offenders, offendersTotal } = since;
	const { created, reopened, resolved } = submitted;
	return html`
		<${Section} title="Comparison now">
			<p>${baseline
				? html`Compared with the <a href=${link("runs", baseline)}>previous completed run on the main branch</a>.`
				: "No earlier completed run on the main branch: everything counts as new."}</p>
			<p>${number(created)} created, ${reopened > 0 && `${number(reopened)} reopened, `}<strong>${number(offendersTotal)} new${baseline
				&& " since the baseline"}</strong>${backTotal > 0 && html`, <a href=${toList(back)}>${number(backTotal)} of them resolved on the main branch</a>,
				which a branch cannot reopen`}.${resolved > 0 && ` ${count(resolved, "finding")} no longer reported; marked resolved.`}</p>
			${["dismissed", "resolved"].filter((name) => ignored[name]).map((name) => html`
				<p class="muted">Ignored by the gate: <a href=${toList({ runId: id, status: name })}>${number(ignored[name])} ${name}</a></p>`)}
			<${Part} title="New" total=${offendersTotal} tasks=${offenders} list=${fresh} open />
			<${Loaded} from=${missing} what="what is no longer reported">${(found) => html`
				<${Part} title="No longer reported, unresolved" ...${found} list=${gone} />`}<//>
			<p class="part">${number(ignored.known)} of <a href=${toList({ runId: id })}>${number(summary.total)}</a> already known</p>
		<//>`;
}

const Part = ({ title, total, tasks, list, open }) => html`
	<details class="part" open=${open && total > 0}>
		<summary><h3>${title}</h3> <span class="count">${number(total)}</span></summary>
		<${FindingRows} tasks=${tasks} list=${{ sort: "severity", ...list }} />
		<p>${total > 0 ? html`<a href=${toList(list)}>${total > tasks.length ? `View all ${number(total)}` : "Open as a list"}</a>` : "None."}</p>
	</details>`;

const Results = ({ run: { id, status, summary: { total, bySeverity, byStatus } } }) => html`
	<${Section} title=${status === "running" ? "Results so far" : "Results"}>
		<p>${total ? html`<a href=${toList({ runId: id })}>${count(total, "finding")}</a> <span class="muted">Current status of this run's findings</span>` : "No findings"}</p>
		${[["severity", SEVERITIES, bySeverity, Severity], ["status", STATUSES, byStatus, Status]].map(([filter, names, totals, Name]) => html`
			<p class="buttons">${names.filter((name) => totals[name]).map((name) => html`
				<a href=${toList({ runId: id, [filter]: name })}><${Name} is=${name} /> ${number(totals[name])}</a>`)}</p>`)}
	<//>`;
