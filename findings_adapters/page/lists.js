// What lists of findings and of runs share: pages, and tables that narrow screens can show.

import { get, placeBehind, request } from "./api.js";
import { html, useEffect, useLoad } from "./lib.js";
import { go, link } from "./route.js";
import { number } from "./words.js";

const LIMIT = 50;
const MOST = 1_000_000; // bytes of a page of whole findings; beyond, none has evidence
let bulky = false;
const places = new Map(); // of the pages that were seen: by filters and number, what they begin behind

async function loadRows(kind, query, signal) {
	if (kind === "tasks" && !bulky) {
		const whole = await request("GET", kind, { query: { ...query, view: "full" }, signal, most: MOST });
		if (whole) return whole.data;
		bulky = true;
	}
	return get(kind, query, signal);
}

/** Return a page, by the place that it begins behind where that is known. */
async function loadPage(kind, filters, page, signal) {
	const key = JSON.stringify([kind, filters]);
	const after = places.get(`${key} ${page}`);
	const query = { ...filters, limit: LIMIT, ...(after ? { after } : { page }) };
	const list = await loadRows(kind, query, signal);
	if (list.next) places.set(`${key} ${page + 1}`, placeBehind(list));
	return list;
}

/**
 * Load the page of a list that the address names. `change` goes to the list with other values in the address, and
 * `turn` to another page; `initial(key)` may return what was loaded for the same before.
 */
export function useList(view, kind, query, filters, inputs = [], initial = () => null) {
	const page = Math.max(1, Math.trunc(Number(query.page)) || 1);
	const key = JSON.stringify([filters, page]);
	const loaded = useLoad((signal) => loadPage(kind, filters, page, signal), [key, ...inputs], initial(key));
	const change = (fields, replace) => go(link(view, null, { ...query, page: "", ...fields }), replace);
	const turn = (to, replace) => {
		change({ page: to > 1 ? to : "" }, replace);
		scrollTo(0, 0);
	};
	const { data } = loaded;
	useEffect(() => { // what was on the last page may be gone
		if (page > 1 && data?.[kind].length === 0) turn(Math.min(page - 1, Math.ceil(data.total / LIMIT)), true);
	}, [data]);
	return { ...loaded, page, key, change, turn };
}

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

/** A table. Its roles are said, because it has none where CSS shows its rows as something else. */
export const Table = ({ name, kind, busy, columns, before, children }) => html`
	<table class="list ${kind}" role="table" aria-busy=${String(busy)}>
		<caption class="hidden">${name}</caption>
		<thead role="rowgroup">
			<tr role="row">
				${before}
				${columns.map((each) => html`<th role="columnheader" scope="col">${each}</th>`)}
			</tr>
		</thead>
		<tbody role="rowgroup">${children}</tbody>
	</table>`;

export const Cell = ({ kind, empty, children }) => html`
	<td role="cell" class="${kind} ${empty ? "none" : ""}">${children}</td>`;

export const RowHead = ({ children }) => html`<th role="rowheader" scope="row" class="title">${children}</th>`;
