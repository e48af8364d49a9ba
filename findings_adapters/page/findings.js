// The list of findings: found, chosen and decided about.

import { Filters, FILTER_NAMES, placeOf, queryOf } from "./filters.js";
import { Groups } from "./groups.js";
import { GROUPINGS } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, usePage, useRef } from "./lib.js";
import { Actions, gather, knownPeople, MOST_GATHERED, News, Pager, Table, useList, useSelection, whileRead } from "./lists.js";
import { Heading, Loaded, NoneListed, Severity, Status, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { useTriage } from "./triage.js";
import { count, number, REASONS } from "./words.js";

const MOST_EXPORTED = 100_000;

export function Findings({ query }) {
	const View = Object.hasOwn(GROUPINGS, query.group ?? "") ? Groups : List;
	return html`<${View} key=${View.name} query=${query} filters=${queryOf(query)} />`;
}

function List({ query, filters }) {
	const page = usePage();
	const { memory, router } = page;
	const list = useList("findings", "tasks", query, filters);
	const { data, change } = list;
	const tasks = data?.items ?? [];
	const selection = useSelection(tasks, list.cursor, JSON.stringify(filters));
	const { may, chosen, taken } = selection;
	const pending = useRef(null); // all that match, while they are read
	useEffect(() => void (pending.current = null), [chosen]);
	const chooseMatching = async () => {
		const all = whileRead(page, Math.min(data.total, MOST_GATHERED), gather(page, filters));
		pending.current = all;
		const found = await all.ready.catch(() => null);
		if (pending.current !== all) return;
		pending.current = null;
		if (found) selection.set(new Map(found.map((task) => [task.id, task])));
	};
	const affected = () => pending.current ?? taken;
	const back = () => {
		if (chosen.size) selection.clear();
		else if (router.groups) router.go(router.groups);
		router.groups = "";
	};
	useKeys({
		g: () => change({ group: "rule" }),
		X: () => may && data?.total && chooseMatching(),
		Escape: back,
	});
	const buttons = useTriage(affected, taken);
	const most = Math.min(data?.total, MOST_GATHERED);
	return html`
		<${Heading} title="Findings" total=${data && count(data.total, "finding")}>
			<${News} kind="tasks" ...${list} />
			<${Exports} filters=${filters} />
		<//>
		<${Filters} query=${query} onChange=${change} people=${knownPeople(memory, tasks)} />
		<${Loaded} from=${list} what="findings">
			${() => (tasks.length === 0 ? html`<${NoneListed} what="finding" view="findings" isFiltered=${FILTER_NAMES.some((name) => query[name])} />` : html`
				<${Table} name="Findings" kind="findings" ...${list} columns=${columnsOf(query)} items=${tasks} selection=${selection} />
				<${Pager} ...${list} />`)}
		<//>
		<${Actions} selection=${selection} told=${count(chosen.size, "finding")}>
			${chosen.size < most && html`
				<button onClick=${chooseMatching}>Select ${data.total > most ? "the first" : "all"} ${number(most)} that match <kbd aria-hidden="true">X</kbd></button>`}
			${buttons}
		<//>`;
}

/** Save the list in other formats, up to a limit. */
function Exports({ filters }) {
	const { api, changes } = usePage();
	const save = async (type, name) => {
		changes.say(`Making ${name} …`);
		try {
			const response = await api.ask("GET", "tasks", { query: { ...filters, limit: MOST_EXPORTED }, headers: { Accept: type } });
			const to = URL.createObjectURL(await response.blob());
			Object.assign(document.createElement("a"), { href: to, download: name }).click();
			URL.revokeObjectURL(to);
			changes.say(response.headers.has("Link") ? `${name} has the first ${number(MOST_EXPORTED)}; narrow the list for the rest.` : "");
		} catch (error) {
			changes.sayError(error);
		}
	};
	return html`
		<div class="buttons" role="group" aria-label="Save this list">
			<button class="quiet" onClick=${() => save("text/csv", "findings.csv")}>CSV</button>
			<button class="quiet" onClick=${() => save("application/sarif+json", "findings.sarif")}>SARIF</button>
		</div>`;
}

/** Show a text that may be cut: the pointer tells the whole. */
const cuttable = (text, shown = text) => text && html`<span title=${text}><${Text} of=${shown} /></span>`;

/** Return a list's columns, without what a filter makes equal in all. */
function columnsOf(query) {
	const tagged = (tag) => link("findings", null, { ...query, tag, page: "" });
	return [
		["severity", "Severity", ({ severity }) => html`<${Severity} is=${severity} />`],
		["title", "Finding", ({ id, title, tags }) => html`
			<a id="row-${id}" href=${link("findings", id)} title=${title}><${Text} of=${title} /></a>
			${tags.map((tag) => html`<a class="kind" tabindex="-1" href=${tagged(tag)}><${Text} of=${tag} /></a>`)}`],
		["rule", "Rule", ({ rule }) => cuttable(rule)],
		["location", "Location", (task) => cuttable(task.location)],
		["status", "Status", ({ status, reason }) => html`<${Status} is=${status} /> <span class="muted">${REASONS[reason]}</span>`],
		["assignee", "Assignee", ({ assignee }) => cuttable(assignee)],
		!query.projectType && ["type", "Type", ({ projectType }) => cuttable(projectType)],
		!query.targetUrl && ["target", "Target", (task) => cuttable(task.targetUrl, placeOf(task))],
		["age", "Age", ({ createdAt }) => html`<${Time} at=${createdAt} />`],
	].filter(Boolean);
}
