// The list of findings: found, chosen and decided about, one by one or group by group.

import { Filters, FILTER_NAMES, placeOf, queryOf } from "./filters.js";
import { Groups } from "./groups.js";
import { GROUPINGS } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, usePage, useRef, useState, useStore } from "./lib.js";
import { Cell, gather, MOST_GATHERED, News, Pager, RowHead, Table, useList, useNews } from "./lists.js";
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
	const full = mayTriage(useStore(session));
	const ids = useStore(changes.changed);
	const list = useList("findings", "tasks", query, filters, [ids]);
	const { data, change, turn, cursor, setCursor } = list;
	const tasks = data?.items ?? [];
	const news = useNews("tasks", list);
	const [chosen, setChosen] = useState(new Map());
	const latest = useRef(0); // the row that was chosen last, where a range begins
	const pending = useRef(null); // all that match, until they are read
	const clear = () => {
		pending.current = null;
		setChosen(new Map());
	};

	useEffect(clear, [JSON.stringify(filters)]);
	useEffect(() => setChosen((old) => new Map([...old].filter(([id]) => !ids.includes(id)))), [ids]);

	const choose = (task, isRange) => setChosen((old) => {
		const next = new Map(old);
		const index = tasks.indexOf(task);
		const [first, end] = isRange ? [Math.min(index, latest.current), Math.max(index, latest.current)] : [index, index];
		for (const each of tasks.slice(first, end + 1)) {
			if (old.has(task.id)) next.delete(each.id);
			else next.set(each.id, each);
		}
		latest.current = index;
		return next;
	});
	const chooseAll = (on) => setChosen((old) => {
		const next = new Map(old);
		for (const task of tasks) {
			if (on) next.set(task.id, task);
			else next.delete(task.id);
		}
		return next;
	});
	const chooseMatching = async () => {
		const all = { length: data.total, ready: gather(page, filters) };
		pending.current = all;
		const found = await all.ready.catch((error) => changes.say(error.message));
		if (pending.current !== all) return;
		pending.current = null;
		if (found) setChosen(new Map(found.map((task) => [task.id, task])));
	};
	const at = tasks.find((each) => each.id === cursor);
	const present = (task) => tasks.find(({ id }) => id === task.id) ?? task;
	const affected = () => pending.current ?? (chosen.size ? [...chosen.values()].map(present) : at ? [at] : []);
	const people = () => knownPeople(memory, tasks);
	const back = () => {
		if (chosen.size) clear();
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
		...(full ? { x: () => at && choose(at), X: () => data?.total && chooseMatching() } : {}),
		...triageKeys(page, affected, people),
	});

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
					<${Rows} tasks=${tasks} busy=${list.loading} full=${full} query=${query} chosen=${chosen} choose=${choose} chooseAll=${chooseAll}
						cursor=${cursor} setCursor=${setCursor} />
					<${Pager} list=${data} size=${tasks.length} page=${list.page} turn=${turn} />`}`}
		<//>
		${full && chosen.size > 0 && html`
			<section class="actions" aria-label="What to do with the selected findings">
				<strong aria-live="polite">${count(chosen.size, "finding")} selected</strong>
				${chosen.size < Math.min(data.total, MOST_GATHERED) && html`
					<button onClick=${chooseMatching}>Select ${data.total > MOST_GATHERED ? "the first" : "all"}${" "}
						${number(Math.min(data.total, MOST_GATHERED))} that match <kbd aria-hidden="true">X</kbd></button>`}
				<${TriageButtons} chosen=${affected} people=${people} is=${statusOf([...chosen.values()].map(present))} />
				<button class="quiet" onClick=${clear}>Clear</button>
			</section>`}`;
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

function Rows({ tasks, busy, full, query, chosen, choose, chooseAll, cursor, setCursor }) {
	const some = tasks.some((each) => chosen.has(each.id));
	const all = tasks.every((each) => chosen.has(each.id));
	const columns = columnsOf(query);
	const before = full && html`
		<th role="columnheader" scope="col" class="choose"><label>
			<input type="checkbox" aria-label="Select all on this page" checked=${all} indeterminate=${some && !all}
				onChange=${() => chooseAll(!all)} /></label></th>`;
	return html`
		<${Table} name="Findings" kind="findings ${full ? "full" : ""}" busy=${busy} columns=${columns} before=${before}>
			${tasks.map((task) => html`
				<${Row} key=${task.id} task=${task} full=${full} query=${query} columns=${columns} chosen=${chosen.has(task.id)}
					choose=${choose} here=${cursor === task.id} setCursor=${setCursor} />`)}
		<//>`;
}

function Row({ task, full, query, columns, chosen, choose, here, setCursor }) {
	const arrive = () => setCursor(task.id);
	const narrowed = (filter) => link("findings", null, { ...query, ...filter, page: "" });
	return html`
		<tr role="row" class="${here ? "here" : ""} ${chosen ? "chosen" : ""}">
			${full && html`
				<${Cell} kind="choose"><label>
					<input type="checkbox" checked=${chosen} aria-label="Select: ${task.title}" onClick=${(event) => choose(task, event.shiftKey)} />
				</label><//>`}
			<${Cell} kind="severity"><${Severity} is=${task.severity} /><//>
			<${RowHead}>
				<a id="row-${task.id}" href=${link("findings", task.id)} title=${task.title} onFocus=${arrive} onClick=${arrive}>
					<${Text} of=${task.title} /></a>
				${task.tags.map((tag) => html`<a class="kind" tabindex="-1" href=${narrowed({ tag })}><${Text} of=${tag} /></a>`)}
			<//>
			<${Cell} kind="rule" empty=${!task.rule}><${Text} of=${task.rule} missing="" /><//>
			<${Cell} kind="location" empty=${!task.location}><span title=${task.location}><${Text} of=${task.location} missing="" /></span><//>
			<${Cell} kind="status">
				<${Status} is=${task.status} />${task.reason && html`<span class="muted"> ${REASONS[task.reason]}</span>`}
			<//>
			<${Cell} kind="assignee" empty=${!task.assignee}><${Text} of=${task.assignee} missing="" /><//>
			${columns.type && html`<${Cell} kind="type"><${Text} of=${task.projectType} /><//>`}
			${columns.target && html`<${Cell} kind="target" empty=${!task.targetUrl}><span title=${task.targetUrl}><${Text} of=${placeOf(task)} missing="" /></span><//>`}
			<${Cell} kind="age"><${Time} at=${task.createdAt} /><//>
		</tr>`;
}
