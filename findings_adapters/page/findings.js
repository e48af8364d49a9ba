// The list of findings: found, chosen and decided about.

import { session } from "./api.js";
import { changed } from "./changes.js";
import { Filters, FILTER_NAMES, placeOf, queryOf } from "./filters.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLayoutEffect, useRef, useState, useStore } from "./lib.js";
import { Cell, Pager, RowHead, Table, useList } from "./lists.js";
import { Copy, Heading, HowToSend, Loaded, Nothing, Severity, Status, Text, Time } from "./parts.js";
import { go, link } from "./route.js";
import { TriageButtons, triageKeys } from "./triage.js";
import { count, REASONS } from "./words.js";

const MOST_AT_ONCE = 1000;

// The list as it was left, for the way back from a finding or on to the next.
const left = { key: "", list: null, cursor: null, scroll: 0, address: link("findings"), searching: false };

/** Return the finding beside one in the list that was left, so many on, or null. */
export function neighbour(id, step) {
	const tasks = left.list?.tasks ?? [];
	const index = tasks.findIndex((each) => each.id === id);
	return index < 0 ? null : (tasks[index + step] ?? null);
}

export const listAddress = () => left.address;
export const leaveAt = (id) => (left.cursor = id);

export function startSearch() {
	Object.assign(left, { cursor: null, searching: true });
	go(link("findings"));
}

export function knownPeople(tasks = left.list?.tasks ?? []) {
	return [...new Set(tasks.map((each) => each.assignee).filter(Boolean))].sort();
}

export function Findings({ query }) {
	const { full } = useStore(session);
	const filters = queryOf(query);
	const list = useList("findings", "tasks", query, filters, [useStore(changed)], (key) => (left.key === key ? left.list : null));
	const { data, page, key, change } = list;
	const tasks = data?.tasks ?? [];
	const [chosen, setChosen] = useState(new Map());
	const search = useRef(null);
	const [cursor, setCursor] = useCursor(data?.tasks);

	useEffect(() => setChosen(new Map()), [JSON.stringify(filters)]);
	useEffect(() => {
		if (data && !list.loading) Object.assign(left, { key, list: data, address: location.hash });
	}, [data, list.loading]);
	useScroll(left.key === key);
	useEffect(() => {
		if (left.searching) search.current.select();
		left.searching = false;
	}, []);

	const turn = (to) => {
		setCursor(null);
		list.turn(to);
	};
	const choose = (task) => setChosen((old) => {
		const next = new Map(old);
		if (!next.delete(task.id) && next.size < MOST_AT_ONCE) next.set(task.id, task);
		return next;
	});
	const chooseAll = (on) => setChosen((old) => {
		const next = new Map(old);
		for (const task of tasks) {
			if (!on) next.delete(task.id);
			else if (next.size < MOST_AT_ONCE) next.set(task.id, task);
		}
		return next;
	});
	const at = tasks.find((each) => each.id === cursor);
	const latest = (task) => tasks.find(({ id }) => id === task.id) ?? task;
	const affected = () => (chosen.size ? [...chosen.values()].map(latest) : at ? [at] : []);
	const move = (step) => {
		const index = at ? tasks.indexOf(at) + step : 0;
		if (tasks[index]) setCursor(tasks[index].id, true);
	};
	const ids = useStore(changed);
	useEffect(() => setChosen((old) => new Map([...old].filter(([id]) => !ids.includes(id)))), [ids]);
	useKeys({
		j: () => move(1),
		k: () => move(-1),
		n: () => data?.next && turn(page + 1),
		p: () => page > 1 && turn(page - 1),
		"/": () => search.current?.select(),
		Escape: () => setChosen(new Map()),
		...(full ? { x: () => at && choose(at) } : {}),
		...triageKeys(full, affected, () => knownPeople(tasks)),
	});

	return html`
		<${Heading} title="Findings">
			<p class="total" role="status">${data ? count(data.total, "finding") : ""}</p>
			<${Copy} text=${location.href} label="Copy link" />
		<//>
		<${Filters} query=${query} onChange=${change} search=${search} people=${knownPeople(tasks)} />
		<${Loaded} from=${list} what="findings">
			${() => html`
				${tasks.length === 0 ? html`<${NoFindings} query=${query} />` : html`
					<${Rows} tasks=${tasks} busy=${list.loading} full=${full} chosen=${chosen} choose=${choose} chooseAll=${chooseAll}
						cursor=${cursor} setCursor=${setCursor} />
					<${Pager} list=${data} size=${tasks.length} page=${page} turn=${turn} />`}`}
		<//>
		${full && chosen.size > 0 && html`
			<section class="actions" aria-label="What to do with the selected findings">
				<strong aria-live="polite">${count(chosen.size, "finding")} selected</strong>
				<${TriageButtons} tasks=${affected()} people=${knownPeople(tasks)} />
				<button class="quiet" onClick=${() => setChosen(new Map())}>Clear</button>
			</section>`}`;
}

/** Return the id of the row that keys are about, and what moves it. Where a row goes, the next one follows. */
function useCursor(tasks) {
	const [cursor, setCursor] = useState(left.cursor);
	const place = useRef({ index: 0, focus: left.cursor !== null });
	useLayoutEffect(() => {
		if (!tasks || cursor === null) return;
		const index = tasks.findIndex((each) => each.id === cursor);
		if (index >= 0) place.current.index = index;
		else setCursor(tasks[Math.min(place.current.index, tasks.length - 1)]?.id ?? null);
		const lost = document.activeElement === document.body && !document.querySelector("dialog[open]");
		if (index >= 0 && (lost || place.current.focus) && !document.activeElement.matches("search input")) {
			document.getElementById(`row-${cursor}`)?.focus({ preventScroll: lost && !place.current.focus });
			place.current.focus = false;
		}
	}, [tasks, cursor]);
	return [cursor, (id, focus = false) => {
		place.current.focus = focus;
		left.cursor = id;
		setCursor(id);
	}];
}

/** Keep how far the list was scrolled, and scroll there again on the way back to it. */
function useScroll(isBack) {
	useLayoutEffect(() => {
		scrollTo(0, isBack ? left.scroll : 0);
		const keep = () => (left.scroll = scrollY);
		addEventListener("scroll", keep, { passive: true });
		return () => removeEventListener("scroll", keep);
	}, []);
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

const COLUMNS = ["Severity", "Finding", "Status", "Assignee", "Type", "Target", "Age"];

function Rows({ tasks, busy, full, chosen, choose, chooseAll, cursor, setCursor }) {
	const all = tasks.every((each) => chosen.has(each.id));
	const before = full && html`
		<th role="columnheader" scope="col" class="choose">
			<input type="checkbox" aria-label="Select all on this page" checked=${all} onChange=${() => chooseAll(!all)} />
		</th>`;
	return html`
		<${Table} name="Findings" kind="findings ${full ? "full" : ""}" busy=${busy} columns=${COLUMNS} before=${before}>
			${tasks.map((task) => html`
				<${Row} key=${task.id} task=${task} full=${full} chosen=${chosen.has(task.id)} choose=${choose}
					here=${cursor === task.id} setCursor=${setCursor} />`)}
		<//>`;
}

/** What a finding breaks, and where: in one line, of which the end is seen. */
const Spot = ({ rule, location }) => html`
	<span class="spot muted">
		${rule && html`<span><${Text} of=${rule} /></span>`}
		<span class="location"><${Text} of=${location} /></span>
	</span>`;

function Row({ task, full, chosen, choose, here, setCursor }) {
	const arrive = () => setCursor(task.id);
	const label = task.evidence?.find((each) => each.label)?.label ?? task.rule; // tells apart what has the same title
	return html`
		<tr role="row" class="${here ? "here" : ""} ${chosen ? "chosen" : ""}">
			${full && html`
				<${Cell} kind="choose">
					<input type="checkbox" checked=${chosen} aria-label="Select: ${task.title}" onChange=${() => choose(task)} />
				<//>`}
			<${Cell} kind="severity"><${Severity} is=${task.severity} /><//>
			<${RowHead}>
				<a id="row-${task.id}" href=${link("findings", task.id)} onFocus=${arrive} onClick=${arrive}>
					<${Text} of=${task.title} /></a>
				${task.location
					? html`<${Spot} ...${task} />`
					: label && html`<span class="label muted"><${Text} of=${label} /></span>`}
			<//>
			<${Cell} kind="status">
				<${Status} is=${task.status} />${task.reason && html`<span class="muted"> ${REASONS[task.reason]}</span>`}
			<//>
			<${Cell} kind="assignee" empty=${!task.assignee}><${Text} of=${task.assignee} /><//>
			<${Cell} kind="type"><${Text} of=${task.projectType} /><//>
			<${Cell} kind="target" empty=${!task.targetUrl}><${Text} of=${placeOf(task)} /><//>
			<${Cell} kind="age"><${Time} at=${task.createdAt} /><//>
		</tr>`;
}
