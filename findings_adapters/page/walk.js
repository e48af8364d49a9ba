// Previous and Next of a finding go through the list from which it was opened, or through the default list.

import { queryOf } from "./filters.js";
import { useKeys } from "./keys.js";
import { html, useEffect, usePage, useReducer } from "./lib.js";
import { LIMIT, loadPage } from "./lists.js";
import { link, readRoute, toFindings } from "./route.js";
import { number } from "./words.js";

const MOST_SEARCHED = 40; // pages of the default list in which a finding is looked for

/**
 * Return a walk {filters, items: the loaded findings, first and last: the numbers of their pages, more: whether pages
 * follow, total, seen: the page and id of the last finding} without pages, for `memory.walk`.
 */
export const walkOf = (filters) => ({ filters, items: [], first: 1, last: 0, more: true });

const indexIn = (items, id) => items.findIndex((each) => each.id === id);

async function extend(page, walk, step) {
	const { items, number, next, total } = await loadPage(page, "tasks", walk.filters, step > 0 ? walk.last + 1 : walk.first - 1);
	const added = items.filter((each) => indexIn(walk.items, each.id) < 0);
	Object.assign(walk, step > 0
		? { items: [...walk.items, ...added], last: number, more: !!next, total }
		: { items: [...added, ...walk.items], first: number });
}

/** Return the walk that contains a finding and its neighbours. */
async function locate(page, id) {
	const { memory } = page;
	const index = () => indexIn(memory.walk.items, id);
	if (!memory.walk || (memory.walk.last && index() < 0)) memory.walk = walkOf(queryOf(readRoute(toFindings()).query));
	const { walk } = memory;
	while (walk.more && (index() < 0 ? walk.last < MOST_SEARCHED : index() === walk.items.length - 1)) await extend(page, walk, 1);
	if (walk.first > 1 && index() === 0) await extend(page, walk, -1);
	return walk;
}

export function Walk({ id }) {
	const page = usePage();
	const { memory, router } = page;
	const [, draw] = useReducer((turn) => turn + 1, 0);
	useEffect(() => void locate(page, id).then(draw, () => {}), [id]); // if it fails, both buttons stay disabled
	const { items, first, total } = memory.walk ?? { items: [] };
	const index = indexIn(items, id);
	const step = async (by) => {
		const from = router.get().id; // not `id`: an earlier key may have moved on already
		const walk = await locate(page, from).catch(() => null);
		const at = walk ? indexIn(walk.items, from) : -1;
		const to = at >= 0 && walk.items[at + by];
		if (!to || router.get().id !== from) return;
		walk.seen = { id: to.id, page: walk.first + Math.floor((at + by) / LIMIT) };
		router.go(link("findings", to.id), true);
	};
	useKeys({ j: () => step(1), k: () => step(-1) });
	return html`
		<span class="buttons">
			${index >= 0 && total && html`<span class="muted">${number((first - 1) * LIMIT + index + 1)} of ${number(total)}</span>`}
			<button class="quiet" title="Previous (k)" disabled=${index < 1} onClick=${() => step(-1)}>Previous</button>
			<button class="quiet" title="Next (j)" disabled=${index < 0 || index === items.length - 1} onClick=${() => step(1)}>Next</button>
		</span>`;
}
