// One run, beside its baseline: what is new, what is gone, and what is still there.

import { pathOf } from "./api.js";
import { html, useLoad, usePage, useStore } from "./lib.js";
import { Fact, Heading, Loaded, Place, Severity, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { Submitted } from "./runs.js";
import { Value } from "./values.js";
import { count, number, SEVERITIES, STATUSES } from "./words.js";

const LISTED = 50; // of each list, as many as the gate tells

const missedBy = (run) => ({ missingFrom: run.id, createdBefore: run.createdAt, sort: "severity" });
const newIn = ({ id, branch }) => ({
	newIn: id,
	status: branch ? "open,in_progress,resolved" : "open,in_progress", // as the gate counts
	sort: "severity",
});

/**
 * Load a run beside its baseline. A gate whose bar is the lowest offends by all that is new; what was reported, is not
 * among that and undecided, was there before.
 */
async function load({ get }, id, signal) {
	const run = await get(pathOf("runs", id), {}, signal);
	const [gate, beside, missing, reported] = await Promise.all([
		get(pathOf("runs", id, "/gate"), {}, signal),
		get(pathOf("runs", id, "/gate"), { failOn: "info", only: "new" }, signal),
		get("tasks", { ...missedBy(run), limit: LISTED }, signal),
		get("tasks", { runId: id, limit: LISTED, sort: "severity" }, signal),
	]);
	const fresh = new Set(beside.offenders.map((task) => task.id));
	const isKnown = ({ id, status }) => !fresh.has(id) && (status === "open" || status === "in_progress");
	const known = beside.offendersTotal > fresh.size ? [] : reported.tasks.filter(isKnown);
	return { run, gate, beside, missing, known };
}

export function Run({ id }) {
	const { api, changes } = usePage();
	const loaded = useLoad((signal) => load(api, id, signal), [id, useStore(changes.changed)]);
	return html`
		<nav class="trail" aria-label="Trail"><a href=${link("runs")}>Runs</a></nav>
		<${Loaded} from=${loaded} what="the run" title="Run">${(data) => html`<${Whole} ...${data} />`}<//>`;
}

const Whole = ({ run, gate, beside, missing, known }) => html`
	<${Heading} title="Run of ${run.projectType}"><p class="badges"><${Status} is=${run.status} /></p><//>
	<div class="columns">
		<div class="main">
			<section class="card">
				<h2>Gate</h2>
				<p><${Verdict} gate=${gate} /> <${Text} of=${gate.reason} /></p>
			</section>
			<${Comparison} run=${run} gate=${beside} missing=${missing} known=${known} />
			${Object.keys(run.metadata).length > 0 && html`<section><h2>Metadata</h2><${Value} of=${run.metadata} /></section>`}
		</div>
		<aside aria-label="Facts"><${Facts} run=${run} /></aside>
	</div>`;

const Comparison = ({ run, gate, missing, known }) => html`
	<section>
		<h2>Beside its baseline</h2>
		<p>${gate.baseline
			? html`Its baseline is <a href=${link("runs", gate.baseline)}>the main line's last completed run before it</a>.`
			: "There is no completed run of the main line before it, so that all is new."}
			${gate.ignored.dismissed + gate.ignored.resolved > 0 && html`
				<span class="muted"> Not counted: ${number(gate.ignored.dismissed)} dismissed, ${number(gate.ignored.resolved)} resolved.</span>`}</p>
		<${Part} title="New" total=${gate.offendersTotal} tasks=${gate.offenders} query=${newIn(run)} open />
		<${Part} title=${run.status === "completed" ? "Fixed, or not reported" : "Not reported yet"} total=${missing.total} tasks=${missing.tasks}
			query=${missedBy(run)} fixed=${run.submitted.resolved} />
		<${Part} title="Still there" total=${gate.ignored.known} tasks=${known} query=${{ runId: run.id, sort: "severity" }} />
	</section>`;

const Part = ({ title, total, tasks, query, open, fixed = 0 }) => html`
	<details class="part" open=${open && total > 0}>
		<summary><h3>${title}</h3> <span class="count">${number(total + fixed)}</span></summary>
		<ul class="rows">
			${tasks.map((task) => html`
				<li>
					<span><${Severity} is=${task.severity} /></span>
					<span class="what"><a href=${link("findings", task.id)}><${Text} of=${task.title} /></a></span>
					<span><${Status} is=${task.status} /></span>
				</li>`)}
		</ul>
		${fixed > 0 && html`<p>${count(fixed, "finding")} resolved by this run.</p>`}
		${total === 0
			? html`<p class="muted">None.</p>`
			: html`<p><a href=${link("findings", null, query)}>
				${total > tasks.length ? `Open the list of all ${number(total)}` : "Open the list"}</a></p>`}
	</details>`;

const Facts = ({ run }) => html`
	<dl class="facts">
		<${Place} of=${run} />
		<${Fact} name="Status"><${Status} is=${run.status} />
			${run.statusReason && html` <span class="lines"><${Text} of=${run.statusReason} /></span>`}<//>
		<${Fact} name="Started"><${Time} at=${run.createdAt} long /><//>
		${run.finishedAt && html`<${Fact} name="Finished"><${Time} at=${run.finishedAt} long /><//>`}
		<${Fact} name="Brought"><${Submitted} of=${run.submitted} /><//>
		<${Fact} name="Reported"><a href=${link("findings", null, { runId: run.id })}>${count(run.summary.total, "finding")}</a><//>
		${SEVERITIES.filter((name) => run.summary.bySeverity[name]).map((name) => html`
			<${Fact} name=${html`<${Severity} is=${name} />`}>${number(run.summary.bySeverity[name])}<//>`)}
		${STATUSES.filter((name) => run.summary.byStatus[name]).map((name) => html`
			<${Fact} name=${html`<${Status} is=${name} />`}>${number(run.summary.byStatus[name])}<//>`)}
		<${Fact} name="Id"><${Text} of=${run.id} /><//>
	</dl>`;
