// Runs: who looked at what, when, and what that brought.

import { Where } from "./filters.js";
import { useKeys } from "./keys.js";
import { html } from "./lib.js";
import { Cell, Pager, RowHead, Table, useList } from "./lists.js";
import { Heading, HowToSend, Loaded, Nothing, Select, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { count, number, RUN_NAMES } from "./words.js";

const FILTERS = ["projectType", "status", "targetUrl", "branch", "mainLine"];
const COLUMNS = { title: "Run", target: "Target", branch: "Branch", status: "Status", brought: "Brought", age: "Age" };

export function Submitted({ of }) {
	const told = Object.entries(of).filter(([, times]) => times > 0);
	return told.length ? told.map(([name, times]) => `${number(times)} ${name}`).join(", ") : html`<span class="muted">nothing</span>`;
}

export function Runs({ query }) {
	const filters = Object.fromEntries(FILTERS.map((name) => [name, query[name]]).filter(([, value]) => value));
	const list = useList("runs", "runs", query, filters);
	const isFiltered = Object.keys(filters).length > 0;
	useKeys({
		j: () => list.move(1),
		k: () => list.move(-1),
		n: () => list.data?.next && list.turn(list.page + 1),
		p: () => list.page > 1 && list.turn(list.page - 1),
	});
	return html`
		<${Heading} title="Runs"><p class="total" role="status">${list.data ? count(list.data.total, "run") : ""}</p><//>
		<search class="filters"><div class="grid">
			<${Where} query=${query} onChange=${list.change} />
			<${Select} label="Status" value=${query.status} options=${[["", "All statuses"], ...Object.entries(RUN_NAMES)]}
				onChange=${(status) => list.change({ status })} />
		</div></search>
		<${Loaded} from=${list} what="runs">
			${(data) => (data.items.length
				? html`<${RunTable} ...${list} runs=${data.items} /><${Pager} ...${list} list=${data} size=${data.items.length} />`
				: html`<${Nothing} title=${isFiltered ? "No run is like that" : "No runs yet"}>
					${isFiltered ? html`<p><a href=${link("runs")}>Show all runs</a></p>` : html`<${HowToSend} />`}<//>`)}
		<//>`;
}

/** Runs, each with the verdict of its gate in place of its status where it has a `gate`. */
export const RunTable = ({ runs, loading = false, cursor, setCursor }) => html`
	<${Table} name="Runs" kind="runs" busy=${loading} columns=${COLUMNS}>
		${runs.map(({ id, projectType, targetUrl, branch, status, gate, submitted, createdAt }) => html`
			<tr role="row" key=${id} class=${id === cursor ? "here" : ""}>
				<${RowHead}><a id="row-${id}" href=${link("runs", id)} onFocus=${() => setCursor?.(id)}><${Text} of=${projectType} /></a><//>
				<${Cell} kind="target" empty=${!targetUrl}><${Text} of=${targetUrl} /><//>
				<${Cell} kind="branch" empty=${!branch}><${Text} of=${branch} missing="Main line" /><//>
				<${Cell} kind="status">${gate ? html`<${Verdict} gate=${gate} />` : html`<${Status} is=${status} />`}<//>
				<${Cell} kind="brought"><${Submitted} of=${submitted} /><//>
				<${Cell} kind="age"><${Time} at=${createdAt} /><//>
			</tr>`)}
	<//>`;
