// Groups of findings, with one decision for a group.

import { Filters } from "./filters.js";
import { filtersOf, GROUPINGS, isOf, narrowed } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useAnswer, usePage } from "./lib.js";
import { Actions, gather, MOST_GATHERED, Table, useCursor, useSelection, whileRead } from "./lists.js";
import { Heading, Loaded, NoneListed, Text } from "./parts.js";
import { link } from "./route.js";
import { useTriage } from "./triage.js";
import { capital, count, number, SEVERITIES } from "./words.js";

const MOST = 200; // the service's own limit

export function Groups({ query, filters }) {
	const page = usePage();
	const { memory, router } = page;
	const by = query.group;
	const { sort, ...wanted } = filters;
	const asked = { ...wanted, by, limit: MOST };
	const loaded = useAnswer("groups", asked, async (get) => {
		const { groups, others } = await get("groups", asked);
		return { by, others, items: groups.map((group) => ({ ...group, id: JSON.stringify([by, group.value]), title: group.value ?? "none" })) };
	});
	const groups = loaded.data?.by === by ? loaded.data.items : [];
	const rows = useCursor(loaded.data?.items, (memory.lists.groups ??= { cursor: null }));
	const selection = useSelection(groups, rows.cursor, JSON.stringify(asked));
	const { may, chosen, taken } = selection;
	const change = (fields, replace) => router.go(link("findings", null, { ...query, page: "", ...fields }), replace);
	const size = taken.reduce((sum, { total }) => sum + total, 0);
	const read = async () => {
		const found = new Map();
		for (const { value } of taken) {
			const tasks = await gather(page, narrowed(filters, by, value));
			for (const task of tasks) if (isOf(by, value, task)) found.set(task.id, task); // one with two tags is in two groups
		}
		return [...found.values()].slice(0, MOST_GATHERED);
	};
	const affected = () => (size ? whileRead(page, size, read()) : []);
	useKeys({
		g: () => change({ group: "" }),
		r: loaded.reload,
		X: () => may && selection.put(groups, true),
		Escape: selection.clear,
	});
	const buttons = useTriage(affected);
	return html`
		<${Heading} title="Findings" total=${loaded.data && count(groups.length, "group")} />
		<${Filters} query=${query} onChange=${change} />
		<${Loaded} from=${loaded} what="groups">
			${({ others }) => (groups.length === 0
				? html`<${NoneListed} what="finding" view="findings" isFiltered />`
				: html`
					<${Table} name="Findings by ${GROUPINGS[by]}" kind="groups" ...${rows} loading=${loaded.loading} columns=${columnsOf(by, query, router)}
						items=${groups} selection=${selection} />
					${others > 0 && html`<p class="muted">${count(others, "finding")} in smaller groups.</p>`}`)}
		<//>
		<${Actions} selection=${selection} told="${count(chosen.size, "group")}, ${count(size, "finding")}">${buttons}<//>`;
}

function columnsOf(by, query, router) {
	const enter = () => (router.groups = location.hash); // where Escape leads from a group
	const nameOf = ({ id, value }) => {
		const name = html`<${Text} of=${value} missing="None" />`;
		return filtersOf(by, value)
			? html`<a id="row-${id}" href=${link("findings", null, { ...narrowed(query, by, value), group: "", page: "" })} title=${value} onClick=${enter}>${name}</a>`
			: html`<span id="row-${id}" tabindex="0">${name}</span>`;
	};
	const counted = (severity) => ({ bySeverity: { [severity]: total } }) => total > 0
		&& html`<span class="severity-${severity}">${number(total)}<span class="narrow"> ${severity}</span></span>`;
	return [
		["title", GROUPINGS[by], nameOf],
		["number", "Findings", ({ total }) => number(total)],
		...SEVERITIES.map((severity) => ["number", capital(severity), counted(severity)]),
	];
}
