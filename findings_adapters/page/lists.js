// What lists of findings and of runs share: pages, the row that keys are about, and tables that narrow screens can show.

import { placeBehind } from "./api.js";
import { html, useEffect, useLayoutEffect, useLoad, usePage, useRef, useState } from "./lib.js";
import { link } from "./route.js";
import { number } from "./words.js";

const LIMIT = 50;
const MOST_OF_A_LIST = 200; // the service's own limit of a page
export const MOST_GATHERED = 10_000;
const PAUSE = 30_000; // milliseconds between two looks whether something is new

/** Return a page, by the place that it begins behind where that is known. */
async function loadPage({ api, memory: { places } }, kind, filters, page, signal) {
	const key = JSON.stringify([kind, filters]);
	const after = places.get(`${key} ${page}`);
	const query = { ...filters, limit: LIMIT, ...(after ? { after } : { page }) };
	const { data, etag } = await api.request("GET", kind, { query, signal });
	if (data.next) places.set(`${key} ${page + 1}`, placeBehind(data));
	return { ...data, items: data[kind], number: page, query, etag };
}

/** Return all findings that filters leave and `accept` takes, as many as may be gathered. */
export async function gather({ api, changes }, filters, accept = () => true) {
	const tasks = [];
	for (let after; ; ) {
		const list = await api.get("tasks", { ...filters, limit: MOST_OF_A_LIST, after });
		tasks.push(...list.tasks);
		after = placeBehind(list);
		if (!after || tasks.length >= MOST_GATHERED) break;
		changes.say(`Reading ${number(tasks.length)} of ${number(list.total)} …`);
	}
	changes.say("");
	return tasks.filter(accept);
}

/**
 * Load the page of a list that the address names. `change` goes to the list with other values in the address, `turn` to
 * another page, and `move` from row to row, over the ends of pages. What a list was when it was left is there on the
 * way back: its rows, how far it was scrolled, and the row that the keys were about, `cursor`.
 */
export function useList(view, kind, query, filters, inputs = []) {
	const shared = usePage();
	const left = (shared.memory.lists[view] ??= { key: "", list: null, cursor: null, scroll: 0 });
	const page = Math.max(1, Math.trunc(Number(query.page)) || 1);
	const key = JSON.stringify([filters, page]);
	const loaded = useLoad((signal) => loadPage(shared, kind, filters, page, signal), [key, ...inputs], left.key === key ? left.list : null);
	const { data } = loaded;
	const isPresent = data?.number === page;
	const rows = useCursor(isPresent ? data.items : null, left);
	const change = (fields, replace) => shared.router.go(link(view, null, { ...query, page: "", ...fields }), replace);
	const turn = (to, replace) => {
		rows.setCursor(null);
		change({ page: to > 1 ? to : "" }, replace);
		scrollTo(0, 0);
	};
	const move = (step) => {
		if (!isPresent || rows.move(step)) return;
		if (step > 0 ? !data.next : page === 1) return;
		turn(page + step);
		rows.waitFor(step > 0 ? 0 : Infinity);
	};
	useScroll(left, left.key === key);
	useEffect(() => {
		if (data && !loaded.loading) Object.assign(left, { key, list: data });
	}, [data, loaded.loading]);
	useEffect(() => { // what was on the last page may be gone
		if (page > 1 && isPresent && data.items.length === 0) turn(Math.min(page - 1, Math.ceil(data.total / LIMIT)), true);
	}, [data]);
	return { ...loaded, ...rows, page, key, change, turn, move };
}

/**
 * Return the id of the row that keys are about, and what moves it. Where a row goes, the next one follows; `waitFor`
 * takes one of the rows that come next, by its index.
 */
export function useCursor(items, left) {
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
		const index = items?.findIndex(({ id }) => id === cursor) ?? -1;
		const next = items?.[index < 0 ? 0 : index + step];
		if (next) setCursor(next.id, true);
		return Boolean(next);
	};
	const waitFor = (index) => {
		setCursor("", true);
		Object.assign(place.current, { index, before: items });
	};
	return { cursor, setCursor, move, waitFor };
}

/** Keep how far the list was scrolled, and scroll there again on the way back to it. */
function useScroll(left, isBack) {
	useLayoutEffect(() => {
		scrollTo(0, isBack ? left.scroll : 0);
		const keep = () => (left.scroll = scrollY);
		addEventListener("scroll", keep, { passive: true });
		return () => removeEventListener("scroll", keep);
	}, []);
}

/** Return what is new on a page since it was loaded, as a sentence, or nothing. */
export function newsOf(shown, now) {
	const before = new Map(shown.items.map((item) => [item.id, item]));
	const unknown = now.items.filter(({ id }) => !before.has(id)).length;
	const other = now.items.filter(({ id, updatedAt }) => before.has(id) && before.get(id).updatedAt !== updatedAt).length;
	const more = Math.max(now.total - shown.total, now.total < shown.total ? 0 : unknown);
	const told = [more && `${number(more)} new`, other && `${number(other)} changed`].filter(Boolean);
	if (told.length) return told.join(", ");
	return now.total === shown.total && !unknown ? "" : "The list has changed";
}

/** Look on focus and every half minute whether a page is still what the service has. Nothing moves until somebody asks. */
export function useNews(kind, { data, loading }) {
	const { api } = usePage();
	const [news, setNews] = useState("");
	useEffect(() => {
		setNews("");
		if (!data || loading) return undefined;
		const control = new AbortController();
		const look = async () => {
			if (document.hidden) return;
			const now = await api.request("GET", kind, { query: data.query, known: data.etag, signal: control.signal });
			setNews(now ? newsOf(data, { ...now.data, items: now.data[kind] }) : "");
		};
		const heed = () => look().catch(() => {}); // it is tried again
		const timer = setInterval(heed, PAUSE);
		addEventListener("focus", heed);
		return () => {
			control.abort();
			clearInterval(timer);
			removeEventListener("focus", heed);
		};
	}, [data, loading]);
	return news;
}

export const News = ({ of, load }) => html`
	<span class="news" role="status">${of && html`<span>${of}</span> <button class="quiet" onClick=${load}>Load <kbd aria-hidden="true">r</kbd></button>`}</span>`;

export function Pager({ list, size, page, turn }) {
	const first = (page - 1) * list.limit + 1;
	if (page === 1 && !list.next) return null;
	return html`
		<nav class="pager" aria-label="Pages">
			<button disabled=${page === 1} onClick=${() => turn(page - 1)}>Previous</button>
			<span>${number(first)}–${number(first + size - 1)} of ${number(list.total)}</span>
			<button disabled=${!list.next} onClick=${() => turn(page + 1)}>Next</button>
		</nav>`;
}

/** Return which of a list's items are chosen, by id, and what chooses them: one, a range from the one before, or all. */
export function useSelection(items, inputs) {
	const [chosen, set] = useState(new Map());
	const before = useRef(0);
	const clear = () => set(new Map());
	useEffect(clear, inputs);
	const put = (those, on) => set((old) => {
		const next = new Map(old);
		for (const item of those) {
			if (on) next.set(item.id, item);
			else next.delete(item.id);
		}
		return next;
	});
	const choose = (item, isRange) => {
		const index = items.indexOf(item);
		const [first, last] = [index, isRange ? before.current : index].sort((a, b) => a - b);
		before.current = index;
		put(items.slice(first, last + 1), !chosen.has(item.id));
	};
	return { chosen, set, clear, choose, put };
}

/** A table. Its roles are said, because it has none where CSS shows its rows as something else. */
export function Table({ name, kind, busy, columns, items, selection, children }) {
	const on = items?.filter(({ id }) => selection?.chosen.has(id)).length;
	return html`
		<table class="list ${kind} ${selection ? "full" : ""}" role="table" aria-busy=${String(busy)}>
			<caption class="hidden">${name}</caption>
			<thead role="rowgroup">
				<tr role="row">
					${selection && html`
						<th role="columnheader" scope="col" class="choose"><label>
							<input type="checkbox" aria-label="Select all on this page" checked=${on === items.length} indeterminate=${on > 0 && on < items.length}
								onChange=${() => selection.put(items, on < items.length)} /></label></th>`}
					${Object.entries(columns).map(([column, words]) => html`<th role="columnheader" scope="col" class=${column}>${words}</th>`)}
				</tr>
			</thead>
			<tbody role="rowgroup">${children}</tbody>
		</table>`;
}

/** A row of it, which the keys may be about, and which may be chosen. */
export function Row({ item, name, cursor, selection, children }) {
	const chosen = selection?.chosen.has(item.id);
	return html`
		<tr role="row" class="${cursor === item.id ? "here" : ""} ${chosen ? "chosen" : ""}">
			${selection && html`
				<${Cell} kind="choose"><label>
					<input type="checkbox" checked=${chosen} aria-label="Select: ${name}" onClick=${(event) => selection.choose(item, event.shiftKey)} />
				</label><//>`}
			${children}
		</tr>`;
}

export const Cell = ({ kind, empty, children }) => html`
	<td role="cell" class="${kind} ${empty ? "none" : ""}">${children}</td>`;

export const RowHead = ({ children }) => html`<th role="rowheader" scope="row" class="title">${children}</th>`;

/** What can be done with what is chosen, over the end of the list. */
export const Actions = ({ selection, told, children }) => selection && selection.chosen.size > 0 && html`
	<section class="actions" aria-label="What to do with what is selected">
		<strong aria-live="polite">${told} selected</strong>
		${children}
		<button class="quiet" onClick=${selection.clear}>Clear</button>
	</section>`;
