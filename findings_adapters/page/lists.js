// Shared by lists: pages, the current row, the selection, and tables.

import { placeBehind } from "./api.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useEvent, useLayoutEffect, useLoad, usePage, useRef, useState, useStore } from "./lib.js";
import { link } from "./route.js";
import { mayTriage } from "./session.js";
import { number } from "./words.js";

const LIMIT = 50;
const MOST_OF_A_LIST = 200; // the service's own limit of a page
export const MOST_GATHERED = 10_000;
const PAUSE = 30_000; // milliseconds between two looks for news

async function loadPage({ api, memory: { places } }, kind, filters, page, signal) {
	const name = (number) => JSON.stringify([kind, filters, number]);
	const after = places.get(name(page)); // faster than a page's number
	const query = { ...filters, limit: LIMIT, ...(after ? { after } : { page }) };
	const { data, etag } = await api.request("GET", kind, { query, signal });
	places.set(name(page + 1), placeBehind(data));
	return { ...data, items: data[kind], number: page, query, etag };
}

/** Return all findings that filters leave, up to `MOST_GATHERED`. */
export async function gather({ api, changes }, filters) {
	const tasks = [];
	for (let after; ; ) {
		const list = await api.get("tasks", { ...filters, limit: MOST_OF_A_LIST, after });
		tasks.push(...list.tasks);
		after = placeBehind(list);
		if (!after || tasks.length >= MOST_GATHERED) break;
		changes.say(`Reading ${number(tasks.length)} of ${number(list.total)} …`);
	}
	changes.say("");
	return tasks;
}

/** Return {length, ready, found} for findings still being read, so that a decision can begin. */
export function whileRead({ changes }, length, ready) {
	const tasks = { length, ready };
	ready.then((found) => (tasks.found = found), changes.sayError);
	return tasks;
}

/**
 * Load the page that the address names. `change` goes to other values in the address, `turn` to another page.
 * On the way back to a list its rows, cursor and scroll position are there.
 */
export function useList(view, kind, query, filters) {
	const shared = usePage();
	const { changes, memory, router } = shared;
	const left = (memory.lists[view] ??= { key: "", list: null, cursor: null, scroll: 0 });
	const page = Math.max(1, Math.trunc(Number(query.page)) || 1);
	const key = JSON.stringify([filters, page]);
	const inputs = [key, useStore(changes.changed)];
	const loaded = useLoad((_, signal) => loadPage(shared, kind, filters, page, signal), inputs, left.key === key ? left.list : null);
	const { data, loading, reload } = loaded;
	const isPresent = data?.number === page;
	const change = (fields, replace) => router.go(link(view, null, { ...query, page: "", ...fields }), replace);
	const turn = (to, replace) => {
		rows.setCursor(null);
		change({ page: to > 1 ? to : "" }, replace);
		scrollTo(0, 0);
	};
	const rows = useCursor(isPresent ? data.items : null, left, (step) => {
		if (step > 0 ? !data.next : page === 1) return;
		turn(page + step);
		rows.waitFor(step > 0 ? 0 : Infinity);
	});
	useKeys({
		n: () => data?.next && turn(page + 1),
		p: () => page > 1 && turn(page - 1),
		r: reload,
	});
	useLayoutEffect(() => scrollTo(0, left.key === key ? left.scroll : 0), []);
	useEvent("scroll", () => (left.scroll = scrollY));
	useEffect(() => {
		if (data && !loading) Object.assign(left, { key, list: data });
	}, [data, loading]);
	useEffect(() => { // the last page may be gone
		if (page > 1 && isPresent && data.items.length === 0) turn(Math.min(page - 1, Math.ceil(data.total / LIMIT)), true);
	}, [data]);
	return { ...loaded, ...rows, page, change, turn };
}

/** Return the assignees in the latest list. */
export function knownPeople({ lists }, tasks = lists.findings?.list?.items ?? []) {
	return [...new Set(tasks.map((each) => each.assignee).filter(Boolean))].sort();
}

/**
 * Return the id of the row that keys are about. j and k move it, or call `goBeyond`. Where that row goes, the next
 * follows; `waitFor` takes one of the coming rows, by index.
 */
export function useCursor(items, left, goBeyond = () => {}) {
	const [cursor, show] = useState(left.cursor);
	const place = useRef({ index: 0, focus: left.cursor !== null });
	const setCursor = (id, focus = false) => {
		place.current.focus = focus;
		left.cursor = id;
		show(id);
	};
	useLayoutEffect(() => {
		if (!items || cursor === null || items === place.current.before) return;
		const index = items.findIndex(({ id }) => id === cursor);
		if (index >= 0) place.current.index = index;
		else setCursor(items[Math.min(place.current.index, items.length - 1)]?.id ?? null, place.current.focus);
		const lost = document.activeElement === document.body && !document.querySelector("dialog[open]");
		if (index >= 0 && (lost || place.current.focus) && !document.activeElement.matches("search input")) {
			document.getElementById(`row-${cursor}`)?.focus({ preventScroll: lost && !place.current.focus });
			place.current.focus = false;
		}
	}, [items, cursor]);
	const move = (step) => {
		if (!items) return;
		const index = items.findIndex(({ id }) => id === cursor);
		const next = items[index < 0 ? 0 : index + step];
		if (next) setCursor(next.id, true);
		else goBeyond(step);
	};
	useKeys({ j: () => move(1), k: () => move(-1) });
	const waitFor = (index) => {
		setCursor("", true);
		Object.assign(place.current, { index, before: items });
	};
	return { cursor, setCursor, waitFor };
}

/** Tell what is new on a page. */
function newsOf(shown, now) {
	const before = new Map(shown.items.map((item) => [item.id, item]));
	const unknown = now.items.filter(({ id }) => !before.has(id)).length;
	const other = now.items.filter(({ id, updatedAt }) => before.has(id) && before.get(id).updatedAt !== updatedAt).length;
	const more = Math.max(now.total - shown.total, now.total < shown.total ? 0 : unknown);
	const told = [more && `${number(more)} new`, other && `${number(other)} changed`].filter(Boolean);
	if (told.length) return told.join(", ");
	return now.total === shown.total && !unknown ? "" : "The list has changed";
}

/** Look on focus and every `PAUSE` whether `data` still holds. Nothing moves until somebody asks. */
export function News({ kind, data, loading, reload }) {
	const { api } = usePage();
	const [news, setNews] = useState({});
	const look = async () => {
		if (document.hidden || !data || loading) return;
		const now = await api.request("GET", kind, { query: data.query, known: data.etag }).catch(() => null); // it is tried again
		const isOther = now && now.etag !== data.etag;
		setNews({ of: data, told: isOther && (data.items ? newsOf(data, { ...now.data, items: now.data[kind] }) : "Something has changed") });
	};
	useEvent("focus", look);
	useEffect(() => {
		const timer = setInterval(look, PAUSE);
		return () => clearInterval(timer);
	}, [data, loading]);
	const told = news.of === data && news.told;
	return html`
		<span class="news" role="status">
			${told && html`<span>${told}</span> <button class="quiet" onClick=${reload}>Load <kbd aria-hidden="true">r</kbd></button>`}
		</span>`;
}

export function Pager({ data: { items, limit, next, total }, page, turn }) {
	const first = (page - 1) * limit + 1;
	if (page === 1 && !next) return null;
	return html`
		<nav class="pager" aria-label="Pages">
			<button disabled=${page === 1} onClick=${() => turn(page - 1)}>Previous</button>
			<span>${number(first)}–${number(first + items.length - 1)} of ${number(total)}</span>
			<button disabled=${!next} onClick=${() => turn(page + 1)}>Next</button>
		</nav>`;
}

/**
 * Return the items `chosen`, by id, until `of` changes, and what chooses one, a range, or all. `taken` are they as they
 * are now, else the one that keys are about.
 */
export function useSelection(items, cursor, of) {
	const { session, changes } = usePage();
	const may = mayTriage(useStore(session));
	const ids = useStore(changes.changed);
	const [chosen, set] = useState(new Map());
	const before = useRef(null);
	const clear = () => set(new Map());
	useEffect(clear, [of, ids]);
	const put = (those, on) => set((old) => {
		const next = new Map(old);
		for (const item of those) {
			if (on) next.set(item.id, item);
			else next.delete(item.id);
		}
		return next;
	});
	const choose = (item, isRange) => {
		const [index, from] = [item, before.current].map((each) => items.indexOf(each));
		const [first, last] = [index, isRange && from >= 0 ? from : index].sort((a, b) => a - b);
		before.current = item;
		put(items.slice(first, last + 1), !chosen.has(item.id));
	};
	const present = (id) => items.find((each) => each.id === id);
	const at = present(cursor);
	useKeys({ x: () => may && at && choose(at) });
	const taken = chosen.size ? [...chosen].map(([id, item]) => present(id) ?? item) : at ? [at] : [];
	return { may, chosen, taken, set, clear, choose, put };
}

/** Show `columns`: [name, heading, what shows it]. Roles are said, as CSS that changes `display` takes them away. */
export function Table({ name, kind, columns, items, loading = false, cursor, setCursor, selection }) {
	const chosen = new Set(items.filter(({ id }) => selection?.chosen.has(id)));
	const choose = selection?.may && ["choose", html`
		<label><input type="checkbox" aria-label="Select all on this page" checked=${chosen.size === items.length}
			indeterminate=${chosen.size > 0 && chosen.size < items.length} onChange=${() => selection.put(items, chosen.size < items.length)} /></label>`,
	(item) => html`
		<label><input type="checkbox" aria-label="Select: ${item.title}" checked=${chosen.has(item)}
			onClick=${(event) => selection.choose(item, event.shiftKey)} /></label>`];
	const shown = choose ? [choose, ...columns] : columns;
	return html`
		<table class="list ${kind} ${choose ? "full" : ""}" role="table" aria-busy=${String(loading)}>
			<caption class="hidden">${name}</caption>
			<thead role="rowgroup">
				<tr role="row">${shown.map(([column, heading]) => html`<th role="columnheader" scope="col" class=${column}>${heading}</th>`)}</tr>
			</thead>
			<tbody role="rowgroup">
				${items.map((item) => html`
					<tr role="row" key=${item.id} class="${cursor === item.id ? "here" : ""} ${chosen.has(item) ? "chosen" : ""}">
						${shown.map(([column, , show]) => html`<${Cell} kind=${column} arrive=${() => setCursor?.(item.id)}>${show(item)}<//>`)}
					</tr>`)}
			</tbody>
		</table>`;
}

/** Show a cell: a title with the focus takes the cursor. Narrow screens leave out empty cells. */
const Cell = ({ kind, arrive, children }) => (kind === "title"
	? html`<th role="rowheader" scope="row" class="title" onFocusCapture=${arrive} onClick=${arrive}>${children}</th>`
	: html`<td role="cell" class="${kind} ${children ? "" : "none"}">${children}</td>`);

/** Offer what can be done with what is chosen. */
export const Actions = ({ selection, told, children }) => selection.chosen.size > 0 && html`
	<section class="actions" aria-label="What to do with what is selected">
		<strong aria-live="polite">${told} selected</strong>
		${children}
		<button class="quiet" onClick=${selection.clear}>Clear</button>
	</section>`;
