// Shared by lists: pages, the current row, the selection, and tables.

import { nextCursor } from "./api.js";
import { useKeys } from "./keys.js";
import { createStore, html, useEffect, useEvent, useLayoutEffect, useLoad, usePage, useRef, useState, useStore } from "./lib.js";
import { link } from "./route.js";
import { mayTriage } from "./session.js";
import { number } from "./words.js";

export const LIMIT = 50;
const PAUSE = 30_000; // milliseconds between two checks for changes

/** Load a page of a list, by its number or, faster, by the cursor that the page before it returned. */
export async function loadPage({ api, memory: { cursors } }, kind, filters, page, signal) {
	const name = (number) => JSON.stringify([kind, filters, number]);
	const after = cursors.get(name(page));
	const query = { ...filters, limit: LIMIT, ...(after ? { after } : { page }) };
	const { data, etag } = await api.request("GET", kind, { query, signal });
	cursors.set(name(page + 1), nextCursor(data));
	return { ...data, items: data[kind], number: page, query, filters, etag };
}

/**
 * Load the page that the address names. `cursor` is the id of the row that keys act on, or "" while its page is loading.
 * A list that was left and is opened again has its rows, cursor and scroll position.
 */
export function useList(view, kind, query, filters, load = loadPage) {
	const shared = usePage();
	const { changes, memory, router } = shared;
	const left = (memory.lists[kind] ??= {});
	const page = Math.max(1, Math.trunc(query.page) || 1);
	const of = JSON.stringify(filters);
	const key = page + of;
	const changed = useStore(changes.changed);
	const loaded = useLoad((_, signal) => load(shared, kind, filters, page, signal), [key, changed], left.key === key ? left.list : null);
	const { loading, reload } = loaded;
	const data = loaded.data?.filters.by === filters.by ? loaded.data : null; // no groups by another field
	const items = data?.items;
	const [cursor, showCursor] = useState(left.cursor ?? null);
	const index = items?.findIndex(({ id }) => id === cursor) ?? -1;
	const place = useRef({ index: 0, focus: cursor !== null });
	const setCursor = (id, focus = false) => {
		place.current.focus = focus;
		left.cursor = id;
		showCursor(id);
	};
	const change = (fields, replace) => router.go(link(view, null, { ...query, page: "", ...fields }), replace);
	const turn = (to, replace) => {
		setCursor(null);
		change({ page: to > 1 ? to : "" }, replace);
		scrollTo(0, 0);
	};
	const move = (step) => {
		if (!items || cursor === "") return;
		const next = items[index < 0 ? 0 : index + step];
		if (next) return setCursor(next.id, true);
		if (step > 0 ? !data.next : page === 1) return;
		turn(page + step);
		setCursor("", true);
		Object.assign(place.current, { index: step > 0 ? 0 : Infinity, before: items });
	};
	useKeys({
		j: () => move(1),
		k: () => move(-1),
		n: () => data?.next && turn(page + 1),
		p: () => page > 1 && turn(page - 1),
		r: reload,
	});
	useLayoutEffect(() => {
		const { index: last, focus, before } = place.current;
		if (!items || cursor === null || items === before) return;
		if (index < 0) return setCursor(items[Math.min(last, items.length - 1)]?.id ?? null, focus); // its row is gone
		place.current.index = index;
		const lost = document.activeElement === document.body && !document.querySelector("dialog[open]");
		if (!(lost || focus) || document.activeElement.matches("search input")) return;
		document.getElementById(`row-${cursor}`)?.focus({ preventScroll: !focus });
		place.current.focus = false;
	}, [items, cursor]);
	useLayoutEffect(() => scrollTo(0, left.key === key ? left.scroll : 0), []);
	useEvent("scroll", () => (left.scroll = scrollY));
	useEffect(() => {
		if (data && !loading) Object.assign(left, { key, list: data });
	}, [data, loading]);
	useEffect(() => { // the last page may be gone
		if (page > 1 && items?.length === 0) turn(Math.min(page - 1, Math.ceil(data.total / LIMIT)), true);
	}, [data]);
	const isReady = !!data && JSON.stringify(data.filters) === of;
	return { ...loaded, data, items: items ?? [], query, filters, of, page, change, turn, isReady, cursor, index, setCursor, move };
}

/** Return {id, page} of the finding that a walk through a list with these filters showed last, and move the list's cursor there. */
export function resume({ lists, walk }, kind, filters) {
	if (!walk?.seen || JSON.stringify(walk.filters) !== JSON.stringify(filters)) return null;
	(lists[kind] ??= {}).cursor = walk.seen.id;
	return walk.seen;
}

function newsOf(shown, items, total) {
	const before = new Map(shown.items.map(({ id, updatedAt }) => [id, updatedAt]));
	const unknown = items.filter(({ id }) => !before.has(id)).length;
	const other = items.filter(({ id, updatedAt }) => (before.get(id) ?? updatedAt) !== updatedAt).length;
	const more = total < shown.total ? 0 : Math.max(total - shown.total, unknown);
	const text = [more && `${number(more)} new`, other && `${number(other)} changed`].filter(Boolean).join(", ");
	return text || (total === shown.total && !unknown ? "" : "The list changed");
}

/** Check whether `data` changed, and offer to load it again. */
export function News({ kind, data, loading, reload, hint = "r" }) {
	const { api } = usePage();
	const [news, setNews] = useState({});
	const look = async () => {
		if (document.hidden || !data || loading) return;
		const now = await api.request("GET", kind, { query: data.query, known: data.etag }).catch(() => null); // the next check tries again
		const isOther = now && now.etag !== data.etag;
		setNews({ of: data, text: isOther && (data.items ? newsOf(data, now.data[kind], now.data.total) : "Changed") });
	};
	useEvent("focus", look);
	useEffect(() => {
		const timer = setInterval(look, PAUSE);
		return () => clearInterval(timer);
	}, [data, loading]);
	const text = news.of === data && news.text;
	return html`<span class="news" role="status">${text && html`
		<span>${text}</span> <button class="quiet" onClick=${reload}>Refresh ${hint && html`<kbd aria-hidden="true">${hint}</kbd>`}</button>`}</span>`;
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

const NONE = new Map();

/** Create the store {of: a list's filters, chosen: items by id}, without decided findings. */
function createSelection({ changed }) {
	const store = createStore({ of: "", chosen: NONE });
	changed.follow((ids) => {
		const { of, chosen } = store.get();
		const decided = new Set(ids);
		const left = [...chosen].filter(([id, { etag }]) => etag && !decided.has(id)); // groups have no ETag: any change may empty them
		if (left.length < chosen.size) store.set({ of, chosen: new Map(left) });
	});
	return store;
}

/** Return whether an item, or each of a heading's `tasks`, is selected. */
const isChosen = (chosen, { id, tasks }) => (tasks ? tasks.every((task) => chosen.has(task.id)) : chosen.has(id));

/**
 * Add `chosen`, the selected items by id, and `taken`, their present state or else the item under the cursor, to a list.
 * An item with `tasks` is a heading that stands for them.
 */
export function useSelection(list) {
	const { changes, memory, session } = usePage();
	const { items, index, setCursor, move } = list;
	const of = JSON.stringify({ ...list.filters, sort: "" });
	const may = mayTriage(useStore(session));
	const store = (memory.selection ??= createSelection(changes));
	const kept = useStore(store);
	const chosen = kept.of === of ? kept.chosen : NONE;
	const anchor = useRef(null); // the id at which a range starts
	const set = (all) => may && store.set({ of, chosen: new Map(all.filter(({ tasks }) => !tasks).map((item) => [item.id, item])) });
	const put = (some, on) => {
		const all = [...chosen.values()];
		set(on ? [...all, ...some] : all.filter((item) => !some.some(({ id }) => id === item.id)));
	};
	const choose = (item, isRange) => {
		if (item.tasks) return put(item.tasks, !isChosen(chosen, item));
		const [to, from] = [item.id, isRange ? anchor.current : item.id].map((id) => items.findIndex((each) => each.id === id));
		anchor.current = item.id;
		put(from < 0 ? [item] : items.slice(Math.min(from, to), Math.max(from, to) + 1), !chosen.has(item.id));
	};
	const extend = (step) => { // towards its start, it shrinks the range
		const [from, to] = [items[index], items[index + step]];
		if (!to) return;
		if (!chosen.has(from?.id)) anchor.current = (from ?? to).id;
		const start = items.findIndex(({ id }) => id === anchor.current);
		const isBack = start >= 0 && Math.abs(index + step - start) < Math.abs(index - start);
		put(isBack ? [from] : [from ?? to, to], !isBack);
		setCursor(to.id, true);
	};
	const present = (item) => items.find(({ id }) => id === item.id) ?? item;
	const at = items.slice(index, index + 1);
	useKeys({
		x: () => at.map((item) => choose(item)),
		J: () => extend(1),
		K: () => extend(-1),
	});
	const taken = chosen.size ? [...chosen.values()].map(present) : at[0]?.tasks ?? at;
	const advance = () => chosen.size === 0 && move(1); // the decided item may leave the list
	return { ...list, may, chosen, taken, set, put, choose, advance };
}

export const Chosen = ({ list, text, children }) => list.chosen.size > 0 && html`
	<section class="actions" aria-label="Actions on the selection">
		<strong aria-live="polite">${text}<span class="roomy"> selected</span></strong>
		${children}
		<button class="quiet" aria-label="Clear selection" onClick=${() => list.set([])}>✕</button>
	</section>`;

/** Show `columns`: [name, heading, function that shows an item's cell]. CSS's `display` removes the implicit roles. */
export function Table({ name, kind, columns, items, loading = false, cursor, setCursor, may, chosen = NONE, put, choose }) {
	const pending = useStore(usePage().changes.pending);
	const total = items.filter((item) => isChosen(chosen, item)).length;
	const isAll = total === items.length;
	const box = (label, state) => html`<label><input type="checkbox" aria-label=${label} ...${state} /></label>`;
	const shown = may ? [[
		"choose",
		box("Select all on this page", { checked: isAll, indeterminate: total > 0 && !isAll, onChange: () => put(items, !isAll) }),
		(item) => box(`Select: ${item.title}`, { checked: isChosen(chosen, item), onClick: (event) => choose(item, event.shiftKey) }),
	], ...columns] : columns;
	return html`
		<table class="list ${kind} ${may ? "full" : ""}" role="table" aria-busy=${String(loading)}>
			<caption class="hidden">${name}</caption>
			<thead role="rowgroup">
				<tr role="row">${shown.map(([column, heading]) => html`<th role="columnheader" scope="col" class=${column}>${heading}</th>`)}</tr>
			</thead>
			<tbody role="rowgroup">
				${items.map((item) => html`
					<tr role="row" key=${item.id} aria-busy=${pending.has(item.id) ? "true" : undefined}
						class="${item.id === cursor ? "here" : ""} ${isChosen(chosen, item) ? "chosen" : ""} ${pending.has(item.id) ? "pending" : ""}">
						${shown.map(([column, , show]) => html`<${Cell} kind=${column} arrive=${() => setCursor?.(item.id)}>${show(item)}<//>`)}
					</tr>`)}
			</tbody>
		</table>`;
}

const Cell = ({ kind, arrive, children }) => (kind === "title"
	? html`<th role="rowheader" scope="row" class="title" onFocusCapture=${arrive} onClick=${arrive}>${children}</th>`
	: html`<td role="cell" class="${kind} ${children ? "" : "none"}">${children}</td>`);
