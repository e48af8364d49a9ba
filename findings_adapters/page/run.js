// One run, compared with its baseline.

import { pathOf } from "./api.js";
import { html, useAnswer } from "./lib.js";
import { Fact, Heading, Loaded, Place, Section, Severity, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { DeleteButton } from "./triage.js";
import { Value } from "./values.js";
import { count, number, SEVERITIES, STATUSES } from "./words.js";

const LISTED = 50; // as many as the gate tells

export const toFindings = (query) => link("findings", null, { sort: "severity", ...query });

/** Return the filters of a run's lists, as the gate counts. */
function listsOf({ id, branch, createdAt }) {
	const status = branch ? "open,in_progress,resolved" : "open,in_progress";
	return {
		results: { runId: id },
		fresh: { newIn: id, status },
		back: { newIn: id, status: "resolved", mainLine: "true" },
		missing: { missingFrom: id, createdBefore: createdAt },
	};
}

async function load(get, id) {
	const run = await get(pathOf("runs", id));
	const lists = listsOf(run);
	const gateOf = (query) => get(pathOf("runs", id, "/gate"), query);
	const [gate, beside, back] = await Promise.all([
		gateOf({}),
		gateOf({ failOn: "info", only: "new" }),
		run.branch ? get("tasks", { ...lists.back, limit: 1 }) : { total: 0 },
	]);
	return { run, lists, gate, beside, back: back.total };
}

export function Run({ id }) {
	const loaded = useAnswer("runs", id, (get) => load(get, id));
	return html`<${Loaded} from=${loaded} what="the run" title="Run">${(data) => html`<${Whole} ...${data} />`}<//>`;
}

const Whole = ({ run, gate, ...compared }) => html`
	<${Heading} title="Run of ${run.projectType}"><p class="badges"><${Status} is=${run.status} /></p><//>
	<div class="columns">
		<div>
			<section class="card"><h2>Gate</h2><p><${Verdict} gate=${gate} /> <${Text} of=${gate.reason} /></p></section>
			<${Comparison} run=${run} ...${compared} />
			<${Results} of=${run.summary} list=${compared.lists.results} />
			<${Section} title="Metadata" of=${Object.keys(run.metadata).length}><${Value} of=${run.metadata} /><//>
		</div>
		<aside aria-label="Facts">
			<dl class="facts">
				<${Place} of=${run} />
				<${Fact} name="Reason" of=${run.statusReason}><span class="lines"><${Text} of=${run.statusReason} /></span><//>
				<${Fact} name="Started"><${Time} at=${run.createdAt} long /><//>
				<${Fact} name="Finished" of=${run.finishedAt}><${Time} at=${run.finishedAt} long /><//>
				<${Fact} name="Id"><${Text} of=${run.id} /><//>
			</dl>
			<${DeleteButton} what="this run" path=${pathOf("runs", run.id)} to=${link("runs")}>Findings that no other run reported go with it.<//>
		</aside>
	</div>`;

function Comparison({ run: { status, submitted, summary }, lists, beside, back }) {
	const missing = useAnswer("tasks", { ...lists.missing, sort: "severity", limit: LISTED }); // it may take long
	const { baseline, ignored, offenders, offendersTotal } = beside;
	const { created, reopened, resolved } = submitted;
	return html`
		<${Section} title="Compared with baseline">
			<p>${baseline
				? html`Its baseline is <a href=${link("runs", baseline)}>the main line's last completed run before it</a>.`
				: "There is no completed run of the main line before it, so that all is new."}</p>
			<p>${number(created)} created, ${reopened > 0 && `${number(reopened)} reopened, `}<strong>${number(offendersTotal)} new beside the
				baseline</strong>${back > 0 && html`, <a href=${toFindings(lists.back)}>${number(back)} of them resolved on the main line</a>,
				which a branch cannot reopen`}.${resolved > 0 && ` ${count(resolved, "finding")} not reported any more, and resolved.`}</p>
			${["dismissed", "resolved"].filter((name) => ignored[name]).map((name) => html`
				<p class="muted">Not counted: <a href=${toFindings({ ...lists.results, status: name })}>${number(ignored[name])} ${name}</a></p>`)}
			<${Part} title="New" total=${offendersTotal} tasks=${offenders} list=${lists.fresh} open />
			<${Loaded} from=${missing} what="what was not reported">${(found) => html`
				<${Part} title=${status === "completed" ? "Fixed, or not reported" : "Not reported yet"} ...${found} list=${lists.missing} />`}<//>
			<p class="part"><strong>Still there</strong> <span class="count">${number(ignored.known)}</span> among
				the <a href=${toFindings(lists.results)}>${count(summary.total, "result")}</a></p>
		<//>`;
}

const Part = ({ title, total, tasks, list, open }) => html`
	<details class="part" open=${open && total > 0}>
		<summary><h3>${title}</h3> <span class="count">${number(total)}</span></summary>
		<${FindingRows} tasks=${tasks} />
		<p>${total > 0 ? html`<a href=${toFindings(list)}>Open the list${total > tasks.length && ` of all ${number(total)}`}</a>` : "None."}</p>
	</details>`;

export const FindingRows = ({ tasks, whose }) => html`
	<ul class="rows">
		${tasks.map(({ id, title, severity, status, rule, location, assignee, createdAt }) => html`
			<li>
				<span class="severity"><${Severity} is=${severity} /></span>
				<span class="what"><a href=${link("findings", id)}><${Text} of=${title} /></a>
					<span class="muted"><${Text} of=${rule} missing="" /></span> <span class="muted"><${Text} of=${location} missing="" /></span></span>
				${whose && html`<span class="muted"><${Text} of=${assignee} missing="Unassigned" /> · <${Time} at=${createdAt} /></span>`}
				<${Status} is=${status} />
			</li>`)}
	</ul>`;

const Results = ({ of: { total, bySeverity, byStatus }, list }) => html`
	<${Section} title="Results">
		<p><a href=${toFindings(list)}>${count(total, "finding")}</a> reported by this run, as they stand now.</p>
		${[["severity", SEVERITIES, bySeverity, Severity], ["status", STATUSES, byStatus, Status]].map(([filter, names, totals, Name]) => html`
			<p class="buttons">${names.filter((name) => totals[name]).map((name) => html`
				<a href=${toFindings({ ...list, [filter]: name })}><${Name} is=${name} /> ${number(totals[name])}</a>`)}</p>`)}
	<//>`;
