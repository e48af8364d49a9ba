// The list of findings by what they have in common, with one decision for all of a group.

import { Filters } from "./filters.js";
import { filtersOf, GROUPINGS, isOf } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useLoad, usePage, useStore } from "./lib.js";
import { Actions, Cell, gather, MOST_GATHERED, Row, RowHead, Table, useCursor, useSelection } from "./lists.js";
import { Heading, Loaded, Nothing, Text } from "./parts.js";
import { link } from "./route.js";
import { mayTriage } from "./session.js";
import { TriageButtons, triageKeys } from "./triage.js";
import { capital, count, number, SEVERITIES } from "./words.js";

const MOST = 200; // the service's own limit

export function Groups({ query, filters, search }) {
	const page = usePage();
	const { api, memory, router, session, changes } = page;
	const by = query.group;
	const ids = useStore(changes.changed);
	const { sort, ...wanted } = filters;
	const inputs = [by, JSON.stringify(wanted), ids];
	const loaded = useLoad(async (signal) => {
		const { groups, others } = await api.get("groups", { ...wanted, by, limit: MOST }, signal);
		return { by, others, items: groups.map((group) => ({ ...group, id: JSON.stringify([by, group.value]) })) };
	}, inputs);
	const groups = loaded.data?.by === by ? loaded.data.items : [];
	const { cursor, setCursor, move } = useCursor(loaded.data?.items, (memory.lists.groups ??= { cursor: null }));
	const selecting = useSelection(groups, inputs);
	const selection = mayTriage(useStore(session)) ? selecting : null;

	const change = (fields, replace) => router.go(link("findings", null, { ...query, page: "", ...fields }), replace);
	const at = groups.find(({ id }) => id === cursor);
	const taken = () => (selecting.chosen.size ? [...selecting.chosen.values()] : at ? [at] : []);
	const size = taken().reduce((sum, { total }) => sum + total, 0);
	const read = async (several) => {
		const found = new Map();
		for (const { value } of several) {
			const tasks = await gather(page, { ...filters, ...filtersOf(by, value) }, (task) => isOf(by, value, task));
			for (const task of tasks) found.set(task.id, task); // one with two tags is in two groups
		}
		return [...found.values()].slice(0, MOST_GATHERED);
	};
	const affected = () => (size ? { length: size, ready: read(taken()) } : []);
	const nobody = () => [];
	useKeys({
		j: () => move(1),
		k: () => move(-1),
		g: () => change({ group: "" }),
		r: loaded.reload,
		Escape: selecting.clear,
		...(selection ? { x: () => at && selection.choose(at), X: () => selection.put(groups, true) } : {}),
		...triageKeys(page, affected, nobody),
	});
	const columns = { title: GROUPINGS[by], number: "Findings", ...Object.fromEntries(SEVERITIES.map((name) => [name, capital(name)])) };
	return html`
		<${Heading} title="Findings"><p class="total" role="status">${loaded.data ? count(groups.length, "group") : ""}</p><//>
		<${Filters} query=${query} onChange=${change} search=${search} people=${[]} />
		<${Loaded} from=${loaded} what="groups">
			${({ others }) => (groups.length === 0
				? html`<${Nothing} title="No finding is like that"><p><a href=${link("findings", null, { group: by })}>Group all findings</a></p><//>`
				: html`
					<${Table} name="Findings by ${GROUPINGS[by]}" kind="groups" busy=${loaded.loading} columns=${columns} items=${groups} selection=${selection}>
						${groups.map((group) => html`
							<${Row} key=${group.id} item=${group} name=${group.value ?? "none"} cursor=${cursor} selection=${selection}>
								<${Cells} group=${group} by=${by} query=${query} arrive=${() => setCursor(group.id)} /><//>`)}
					<//>
					${others > 0 && html`<p class="muted">${count(others, "finding")} in smaller groups.</p>`}`)}
		<//>
		<${Actions} selection=${selection} told="${count(selecting.chosen.size, "group")}, ${count(size, "finding")}">
			<${TriageButtons} chosen=${affected} people=${nobody} /><//>`;
}

function Cells({ group: { id, value, total, bySeverity }, by, query, arrive }) {
	const { memory } = usePage();
	const narrower = filtersOf(by, value);
	const name = html`<${Text} of=${value} missing="None" />`;
	const enter = () => (memory.groups = location.hash); // where Escape leads from the list of a group
	const to = link("findings", null, { ...query, page: "", group: "", ...narrower });
	return html`
		<${RowHead}>
			${narrower
				? html`<a id="row-${id}" href=${to} title=${value} onFocus=${arrive} onClick=${enter}>${name}</a>`
				: html`<span id="row-${id}" tabindex="0" onFocus=${arrive}>${name}</span>`}
		<//>
		<${Cell} kind="number">${number(total)}<//>
		${SEVERITIES.map((severity) => html`
			<${Cell} kind="number severity-${severity}" empty=${!bySeverity[severity]}>
				${bySeverity[severity] > 0 && html`${number(bySeverity[severity])}<span class="narrow"> ${severity}</span>`}<//>`)}`;
}
