// One run, compared with its baseline: what is new, what is gone, and what is still there.

import { pathOf } from "./api.js";
import { html, useAnswer } from "./lib.js";
import { Fact, Heading, Loaded, Place, Severity, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { Submitted } from "./runs.js";
import { Value } from "./values.js";
import { count, number, SEVERITIES, STATUSES } from "./words.js";

const LISTED = 50; // of each list, as many as the gate tells
const MOST = 200;

export const toFindings = (query) => link("findings", null, query);

/** Return the filters of the lists that have to do with a run, by what the gate counts. */
function listsOf({ id, branch, createdAt }) {
	const status = branch ? "open,in_progress,resolved" : "open,in_progress";
	return {
		results: { runId: id, sort: "severity" },
		judged: { runId: id, status, sort: "severity" },
		fresh: { newIn: id, status, sort: "severity" },
		back: { newIn: id, status: "resolved", mainLine: "true", sort: "severity" },
		missing: { missingFrom: id, createdBefore: createdAt, sort: "severity" },
	};
}

/**
 * Return those of the findings that a gate with the lowest bar has judged which it takes for known. Both lists have the
 * same order; what the gate does not list any more may be among what follows.
 */
export function knownOf(judged, { offenders, offendersTotal }) {
	const fresh = new Set(offenders.map(({ id }) => id));
	const told = offendersTotal > fresh.size ? judged.slice(0, fresh.size) : judged;
	return told.filter(({ id }) => !fresh.has(id)).slice(0, LISTED);
}

async function load(api, id, signal) {
	const run = await api.get(pathOf("runs", id), {}, signal);
	const lists = listsOf(run);
	const tasks = (query, limit) => api.get("tasks", { ...query, limit }, signal);
	const gateOf = (query) => api.get(pathOf("runs", id, "/gate"), query, signal);
	const [gate, beside, judged, back] = await Promise.all([
		gateOf({}),
		gateOf({ failOn: "info", only: "new" }),
		tasks(lists.judged, MOST),
		run.branch ? tasks(lists.back, 1) : { total: 0 },
	]);
	return { run, lists, gate, beside, known: knownOf(judged.tasks, beside), back: back.total };
}

export function Run({ id }) {
	const loaded = useAnswer("runs", id, (api, signal) => load(api, id, signal));
	return html`
		<nav class="trail" aria-label="Trail"><a href=${link("runs")}>Runs</a></nav>
		<${Loaded} from=${loaded} what="the run" title="Run">${(data) => html`<${Whole} ...${data} />`}<//>`;
}

const Whole = ({ run, gate, lists, ...compared }) => html`
	<${Heading} title="Run of ${run.projectType}"><p class="badges"><${Status} is=${run.status} /></p><//>
	<div class="columns">
		<div class="main">
			<section class="card">
				<h2>Gate</h2>
				<p><${Verdict} gate=${gate} /> <${Text} of=${gate.reason} /></p>
			</section>
			<${Comparison} run=${run} lists=${lists} ...${compared} />
			<section>
				<h2>Results</h2>
				<p><a href=${toFindings(lists.results)}>${count(run.summary.total, "finding")}</a> reported by this run, as they stand now.</p>
				<${Numbers} of=${run.summary.bySeverity} names=${SEVERITIES} Name=${Severity} to=${(severity) => ({ ...lists.results, severity })} />
				<${Numbers} of=${run.summary.byStatus} names=${STATUSES} Name=${Status} to=${(status) => ({ ...lists.results, status })} />
			</section>
			${Object.keys(run.metadata).length > 0 && html`<section><h2>Metadata</h2><${Value} of=${run.metadata} /></section>`}
		</div>
		<aside aria-label="Facts"><${Facts} run=${run} /></aside>
	</div>`;

const Numbers = ({ of, names, Name, to }) => html`
	<p class="buttons">${names.filter((name) => of[name]).map((name) => html`
		<a href=${toFindings(to(name))}><${Name} is=${name} /> ${number(of[name])}</a>`)}</p>`;

function Comparison({ run: { status, submitted }, lists, beside, known, back }) {
	const missing = useAnswer("tasks", { ...lists.missing, limit: LISTED }); // which may take longer than all the rest
	const { baseline, ignored, offenders, offendersTotal } = beside;
	const { created, reopened, resolved } = submitted;
	return html`
		<section>
			<h2>Compared with baseline</h2>
			<p>${baseline
				? html`Its baseline is <a href=${link("runs", baseline)}>the main line's last completed run before it</a>.`
				: "There is no completed run of the main line before it, so that all is new."}</p>
			<p>${number(created)} created, ${reopened > 0 && `${number(reopened)} reopened, `}<strong>${number(offendersTotal)} new beside the
				baseline</strong>${back > 0 && html`, <a href=${toFindings(lists.back)}>${number(back)} of them resolved on the main line</a>,
				which a branch cannot reopen`}.${resolved > 0 && ` ${count(resolved, "finding")} not reported any more, and resolved.`}</p>
			${["dismissed", "resolved"].filter((name) => ignored[name]).map((name) => html`
				<p class="muted">Not counted: <a href=${toFindings({ ...lists.results, status: name })}>${number(ignored[name])} ${name}</a></p>`)}
			<${Part} title="New" total=${offendersTotal} tasks=${offenders} list=${lists.fresh} open />
			<${Loaded} from=${missing} what="what was not reported">${({ total, tasks }) => html`
				<${Part} title=${status === "completed" ? "Fixed, or not reported" : "Not reported yet"} total=${total} tasks=${tasks}
					list=${lists.missing} />`}<//>
			<${Part} title="Still there" total=${ignored.known} tasks=${known} />
		</section>`;
}

/** Findings that go together. There may be no `list` of just these. */
const Part = ({ title, total, tasks, list, open }) => html`
	<details class="part" open=${open && total > 0}>
		<summary><h3>${title}</h3> <span class="count">${number(total)}</span></summary>
		<${FindingRows} tasks=${tasks} />
		${total > 0 && list && html`<p><a href=${toFindings(list)}>
			${total > tasks.length ? `Open the list of all ${number(total)}` : "Open the list"}</a></p>`}
		${total > tasks.length && !list && html`<p class="muted">${number(tasks.length)} of ${number(total)} are shown; all are among the results.</p>`}
		${total === 0 && html`<p class="muted">None.</p>`}
	</details>`;

export const FindingRows = ({ tasks, whose }) => html`
	<ul class="rows">
		${tasks.map(({ id, title, severity, status, rule, location, assignee, createdAt }) => html`
			<li>
				<span class="severity"><${Severity} is=${severity} /></span>
				<span class="what"><a href=${link("findings", id)}><${Text} of=${title} /></a>
					<span class="place muted"><${Text} of=${rule} missing="" /><span title=${location}><${Text} of=${location} missing="" /></span></span></span>
				${whose && html`<span class="muted"><${Text} of=${assignee} missing="Unassigned" /> · <${Time} at=${createdAt} /></span>`}
				<span><${Status} is=${status} /></span>
			</li>`)}
	</ul>`;

const Facts = ({ run }) => html`
	<dl class="facts">
		<${Place} of=${run} />
		<${Fact} name="Status"><${Status} is=${run.status} />
			${run.statusReason && html` <span class="lines"><${Text} of=${run.statusReason} /></span>`}<//>
		<${Fact} name="Started"><${Time} at=${run.createdAt} long /><//>
		${run.finishedAt && html`<${Fact} name="Finished"><${Time} at=${run.finishedAt} long /><//>`}
		<${Fact} name="Brought"><${Submitted} of=${run.submitted} /><//>
		<${Fact} name="Id"><${Text} of=${run.id} /><//>
	</dl>`;
