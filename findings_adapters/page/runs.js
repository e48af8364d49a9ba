// Runs: type, time, target, branch, commit, results and verdict of each.

import { controlOf, targetName, Where } from "./filters.js";
import { html } from "./lib.js";
import { News, Pager, Table, useList } from "./lists.js";
import { Heading, Loaded, NoneListed, Select, Status, Text, Verdict } from "./parts.js";
import { link } from "./route.js";
import { commitOf } from "./source.js";
import { count, minute, number, RUN_NAMES } from "./words.js";

export function Runs({ query }) {
	const { projectType, status, targetUrl, branch, mainLine } = query;
	const filters = { projectType, status, targetUrl, branch, mainLine };
	const list = useList("runs", "runs", query, filters);
	return html`
		<${Heading} title="Runs" total=${list.data && count(list.data.total, "run")}><${News} kind="runs" ...${list} /><//>
		<search class="filters"><div class="grid">
			<${Where} query=${query} onChange=${list.change} ready=${!!list.data} />
			<${Select} ...${controlOf("status", query, list.change)} label="Status" options=${[["", "All statuses"], ...Object.entries(RUN_NAMES)]} />
		</div></search>
		<${Loaded} from=${list} what="runs">${({ items }) => (items.length
			? html`<${RunTable} ...${list} items=${items} /><${Pager} ...${list} />`
			: html`<${NoneListed} what="run" view="runs" isFiltered=${Object.values(filters).some(Boolean)} />`)}<//>`;
}

export const RunState = ({ run: { status, verdict } }) => (verdict ? html`<${Verdict} pass=${verdict.pass} />` : html`<${Status} is=${status} />`);

const counted = (value, noun) => html`${number(value)}<span class="narrow"> ${noun}</span>`;

const COLUMNS = [
	["title", "Run", ({ id, projectType, createdAt }) => html`
		<a id="row-${id}" href=${link("runs", id)}><${Text} of=${projectType} /></a> <time class="muted" datetime=${createdAt}>${minute(createdAt)}</time>`],
	["outcome", "Status", (run) => html`<${RunState} run=${run} />`],
	["target", "Target", ({ targetUrl }) => targetUrl && html`<${Text} of=${targetName({ targetUrl })} />`],
	["branch", "Branch", ({ branch }) => html`<${Text} of=${branch} missing="Main branch" />`],
	["commit", "Commit", (run) => commitOf(run) && html`<code>${commitOf(run).name.slice(0, 7)}</code>`],
	["number", "Results", ({ submitted: { created, updated, reopened, unchanged } }) => counted(created + updated + reopened + unchanged, "results")],
	["number", "New", ({ verdict }) => verdict && counted(verdict.new, "new")],
];

export const RunTable = (list) => html`<${Table} name="Runs" kind="runs" columns=${COLUMNS} ...${list} />`;
