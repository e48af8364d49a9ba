// The list of findings: found, chosen and decided about, one by one or group by group.

import { Filters, FILTER_NAMES, placeOf, queryOf } from "./filters.js";
import { Groups } from "./groups.js";
import { GROUPINGS } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, usePage, useRef, useStore } from "./lib.js";
import { Actions, Cell, gather, MOST_GATHERED, News, Pager, Row, RowHead, Table, useList, useNews, useSelection } from "./lists.js";
import { Copy, Heading, HowToSend, Loaded, Nothing, Severity, Status, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { mayTriage } from "./session.js";
import { TriageButtons, triageKeys } from "./triage.js";
import { count, number, REASONS } from "./words.js";

const MOST_EXPORTED = 100_000;

/** Return the finding beside one in the list that was left, so many on, or null. */
export function neighbour({ lists }, id, step) {
	const tasks = lists.findings?.list?.items ?? [];
	const index = tasks.findIndex((each) => each.id === id);
	return index < 0 ? null : (tasks[index + step] ?? null);
}

export function knownPeople({ lists }, tasks = lists.findings?.list?.items ?? []) {
	return [...new Set(tasks.map((each) => each.assignee).filter(Boolean))].sort();
}

export function Findings({ query }) {
	const { memory } = usePage();
	const search = useRef(null);
	const filters = queryOf(query);
	useEffect(() => {
		if (memory.searching) search.current.select();
		memory.searching = false;
	}, []);
	useKeys({ "/": () => search.current?.select() });
	const View = Object.hasOwn(GROUPINGS, query.group ?? "") ? Groups : List;
	return html`<${View} key=${View.name} query=${query} filters=${filters} search=${search} />`;
}

function List({ query, filters, search }) {
	const page = usePage();
	const { memory, router, session, changes } = page;
	const ids = useStore(changes.changed);
	const list = useList("findings", "tasks", query, filters, [ids]);
	const { data, change, turn, cursor } = list;
	const tasks = data?.items ?? [];
	const news = useNews("tasks", list);
	const selecting = useSelection(tasks, [JSON.stringify(filters), ids]);
	const selection = mayTriage(useStore(session)) ? selecting : null;
	const { chosen } = selecting;
	const pending = useRef(null); // all that match, until they are read
	useEffect(() => void (pending.current = null), [chosen]);
	const chooseMatching = async () => {
		const all = { length: data.total, ready: gather(page, filters) };
		pending.current = all;
		const found = await all.ready.catch((error) => changes.say(error.message));
		if (found && pending.current === all) selecting.set(new Map(found.map((task) => [task.id, task])));
	};
	const at = tasks.find(({ id }) => id === cursor);
	const present = (task) => tasks.find(({ id }) => id === task.id) ?? task;
	const affected = () => pending.current ?? (chosen.size ? [...chosen.values()].map(present) : at ? [at] : []);
	const people = () => knownPeople(memory, tasks);
	const back = () => {
		if (chosen.size) selecting.clear();
		else if (memory.groups) router.go(memory.groups);
		memory.groups = "";
	};
	useKeys({
		j: () => list.move(1),
		k: () => list.move(-1),
		n: () => data?.next && turn(list.page + 1),
		p: () => list.page > 1 && turn(list.page - 1),
		g: () => change({ group: "rule" }),
		r: list.reload,
		Escape: back,
		...(selection ? { x: () => at && selection.choose(at), X: () => data?.total && chooseMatching() } : {}),
		...triageKeys(page, affected, people),
	});
	const most = Math.min(data?.total, MOST_GATHERED);
	return html`
		<${Heading} title="Findings">
			<p class="total" role="status">${data ? count(data.total, "finding") : ""}</p>
			<${News} of=${news} load=${list.reload} />
			<${Exports} filters=${filters} />
			<${Copy} text=${location.href} label="Copy link" />
		<//>
		<${Filters} query=${query} onChange=${change} search=${search} people=${people()} />
		<${Loaded} from=${list} what="findings">
			${() => html`
				${tasks.length === 0 ? html`<${NoFindings} query=${query} />` : html`
					<${Rows} list=${list} tasks=${tasks} query=${query} selection=${selection} />
					<${Pager} list=${data} size=${tasks.length} page=${list.page} turn=${turn} />`}`}
		<//>
		<${Actions} selection=${selection} told=${count(chosen.size, "finding")}>
			${chosen.size < most && html`
				<button onClick=${chooseMatching}>Select ${data.total > most ? "the first" : "all"} ${number(most)} that match <kbd aria-hidden="true">X</kbd></button>`}
			<${TriageButtons} chosen=${affected} people=${people} is=${statusOf([...chosen.values()].map(present))} />
		<//>`;
}

/** Return the status that all have. */
function statusOf(tasks) {
	const [is, ...others] = new Set(tasks.map(({ status }) => status));
	return others.length ? null : is;
}

/** What saves the list in another form, as far as that goes. */
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
			changes.say(error.message);
		}
	};
	return html`
		<div class="buttons" role="group" aria-label="Save this list">
			<button class="quiet" onClick=${() => save("text/csv", "findings.csv")}>CSV</button>
			<button class="quiet" onClick=${() => save("application/sarif+json", "findings.sarif")}>SARIF</button>
		</div>`;
}

function NoFindings({ query }) {
	const filtered = FILTER_NAMES.some((name) => query[name]);
	if (!filtered) return html`<${Nothing} title="No findings yet"><${HowToSend} /><//>`;
	return html`
		<${Nothing} title="No finding is like that">
			<p>Nothing fits the search and all filters at once.</p>
			<p><a href=${link("findings")}>Show all findings</a></p>
		<//>`;
}

const COLUMNS = {
	severity: "Severity",
	title: "Finding",
	rule: "Rule",
	location: "Location",
	status: "Status",
	assignee: "Assignee",
	type: "Type",
	target: "Target",
	age: "Age",
};

/** Return the columns of a list: what all its findings share by a filter is in none. */
function columnsOf({ projectType, targetUrl }) {
	const shared = { type: projectType, target: targetUrl };
	return Object.fromEntries(Object.entries(COLUMNS).filter(([name]) => !shared[name]));
}

function Rows({ list, tasks, query, selection }) {
	const columns = columnsOf(query);
	const narrowed = (filter) => link("findings", null, { ...query, ...filter, page: "" });
	return html`
		<${Table} name="Findings" kind="findings" busy=${list.loading} columns=${columns} items=${tasks} selection=${selection}>
			${tasks.map((task) => html`
				<${Row} key=${task.id} item=${task} name=${task.title} cursor=${list.cursor} selection=${selection}>
					<${Cells} task=${task} columns=${columns} narrowed=${narrowed} arrive=${() => list.setCursor(task.id)} /><//>`)}
		<//>`;
}

const Cells = ({ task, columns, narrowed, arrive }) => html`
	<${Cell} kind="severity"><${Severity} is=${task.severity} /><//>
	<${RowHead}>
		<a id="row-${task.id}" href=${link("findings", task.id)} title=${task.title} onFocus=${arrive} onClick=${arrive}><${Text} of=${task.title} /></a>
		${task.tags.map((tag) => html`<a class="kind" tabindex="-1" href=${narrowed({ tag })}><${Text} of=${tag} /></a>`)}
	<//>
	<${Cell} kind="rule" empty=${!task.rule}><${Text} of=${task.rule} missing="" /><//>
	<${Cell} kind="location" empty=${!task.location}><span title=${task.location}><${Text} of=${task.location} missing="" /></span><//>
	<${Cell} kind="status"><${Status} is=${task.status} /> <span class="muted">${REASONS[task.reason]}</span><//>
	<${Cell} kind="assignee" empty=${!task.assignee}><${Text} of=${task.assignee} missing="" /><//>
	${columns.type && html`<${Cell} kind="type"><${Text} of=${task.projectType} /><//>`}
	${columns.target && html`<${Cell} kind="target" empty=${!task.targetUrl}><span title=${task.targetUrl}><${Text} of=${placeOf(task)} missing="" /></span><//>`}
	<${Cell} kind="age"><${Time} at=${task.createdAt} /><//>`;
