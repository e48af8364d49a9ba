// Runs: who looked at what, when, and what that brought.

import { Where } from "./filters.js";
import { useKeys } from "./keys.js";
import { html } from "./lib.js";
import { Cell, Pager, RowHead, Table, useList } from "./lists.js";
import { Heading, HowToSend, Loaded, Nothing, Select, Status, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { count, number, RUN_NAMES } from "./words.js";

const FILTERS = ["projectType", "status", "targetUrl", "branch", "mainLine"];

export function Submitted({ of }) {
	const told = Object.entries(of).filter(([, times]) => times > 0);
	return told.length ? told.map(([name, times]) => `${number(times)} ${name}`).join(", ") : html`<span class="muted">nothing</span>`;
}

export function Runs({ query }) {
	const filters = Object.fromEntries(FILTERS.map((name) => [name, query[name]]).filter(([, value]) => value));
	const list = useList("runs", "runs", query, filters);
	useKeys({
		j: () => list.move(1),
		k: () => list.move(-1),
		n: () => list.data?.next && list.turn(list.page + 1),
		p: () => list.page > 1 && list.turn(list.page - 1),
	});
	return html`
		<${Heading} title="Runs"><p class="total" role="status">${list.data ? count(list.data.total, "run") : ""}</p><//>
		<${RunFilters} query=${query} onChange=${list.change} />
		<${Loaded} from=${list} what="runs">
			${(data) => (data.items.length
				? html`<${Rows} ...${list} runs=${data.items} /><${Pager} ...${list} list=${data} size=${data.items.length} />`
				: html`<${NoRuns} filtered=${Object.keys(filters).length > 0} />`)}
		<//>`;
}

const RunFilters = ({ query, onChange }) => html`
	<search class="filters"><div class="grid">
		<${Where} query=${query} onChange=${onChange} />
		<${Select} label="Status" value=${query.status} options=${[["", "All statuses"], ...Object.entries(RUN_NAMES)]}
			onChange=${(status) => onChange({ status })} />
	</div></search>`;

const NoRuns = ({ filtered }) => (filtered
	? html`<${Nothing} title="No run is like that"><p><a href=${link("runs")}>Show all runs</a></p><//>`
	: html`<${Nothing} title="No runs yet"><${HowToSend} /><//>`);

const COLUMNS = { title: "Run", target: "Target", branch: "Branch", status: "Status", brought: "Brought", age: "Age" };

const Rows = ({ runs, loading, cursor, setCursor }) => html`
	<${Table} name="Runs" kind="runs" busy=${loading} columns=${COLUMNS}>
		${runs.map((run) => html`
			<tr role="row" key=${run.id} class=${run.id === cursor ? "here" : ""}>
				<${RowHead}><a id="row-${run.id}" href=${link("runs", run.id)} onFocus=${() => setCursor(run.id)}><${Text} of=${run.projectType} /></a><//>
				<${Cell} kind="target" empty=${!run.targetUrl}><${Text} of=${run.targetUrl} /><//>
				<${Cell} kind="branch" empty=${!run.branch}><${Text} of=${run.branch} missing="Main line" /><//>
				<${Cell} kind="status"><${Status} is=${run.status} /><//>
				<${Cell} kind="brought"><${Submitted} of=${run.submitted} /><//>
				<${Cell} kind="age"><${Time} at=${run.createdAt} /><//>
			</tr>`)}
	<//>`;
