// Runs: who looked at what, when, and what it brought.

import { controlOf, Where } from "./filters.js";
import { html } from "./lib.js";
import { News, Pager, Table, useList } from "./lists.js";
import { Heading, Loaded, NoneListed, Select, Status, Text, Time, Verdict } from "./parts.js";
import { link } from "./route.js";
import { count, number, RUN_NAMES } from "./words.js";

const FILTERS = ["projectType", "status", "targetUrl", "branch", "mainLine"];

export function Runs({ query }) {
	const filters = Object.fromEntries(FILTERS.map((name) => [name, query[name]]));
	const list = useList("runs", "runs", query, filters);
	return html`
		<${Heading} title="Runs" total=${list.data && count(list.data.total, "run")}><${News} kind="runs" ...${list} /><//>
		<search class="filters"><div class="grid">
			<${Where} query=${query} onChange=${list.change} />
			<${Select} ...${controlOf("status", query, list.change)} label="Status" options=${[["", "All statuses"], ...Object.entries(RUN_NAMES)]} />
		</div></search>
		<${Loaded} from=${list} what="runs">
			${(data) => (data.items.length
				? html`<${RunTable} ...${list} items=${data.items} /><${Pager} ...${list} />`
				: html`<${NoneListed} what="run" view="runs" isFiltered=${FILTERS.some((name) => query[name])} />`)}
		<//>`;
}

const COLUMNS = [
	["title", "Run", ({ id, projectType }) => html`<a id="row-${id}" href=${link("runs", id)}><${Text} of=${projectType} /></a>`],
	["target", "Target", ({ targetUrl }) => targetUrl && html`<${Text} of=${targetUrl} />`],
	["branch", "Branch", ({ branch }) => html`<${Text} of=${branch} missing="Main line" />`],
	["status", "Status", ({ status, gate }) => (gate ? html`<${Verdict} gate=${gate} />` : html`<${Status} is=${status} />`)],
	["brought", "Brought", ({ submitted }) => {
		const told = Object.entries(submitted).filter(([, times]) => times > 0);
		return html`<${Text} of=${told.map(([name, times]) => `${number(times)} ${name}`).join(", ")} missing="nothing" />`;
	}],
	["age", "Age", ({ createdAt }) => html`<${Time} at=${createdAt} />`],
];

/** List runs: a `gate`'s verdict replaces the status. */
export const RunTable = (list) => html`<${Table} name="Runs" kind="runs" columns=${COLUMNS} ...${list} />`;
