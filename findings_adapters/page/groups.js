// The list of findings by what they have in common, with one decision for all of a group.

import { Filters } from "./filters.js";
import { filtersOf, GROUPINGS, isOf } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLoad, usePage, useState, useStore } from "./lib.js";
import { Cell, gather, MOST_GATHERED, RowHead, Table, useCursor } from "./lists.js";
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
	const full = mayTriage(useStore(session));
	const ids = useStore(changes.changed);
	const { sort, ...wanted } = filters;
	const loaded = useLoad(async (signal) => {
		const { groups, others } = await api.get("groups", { ...wanted, by, limit: MOST }, signal);
		return { by, others, groups: groups.map((group) => ({ ...group, id: JSON.stringify([by, group.value]) })) };
	}, [by, JSON.stringify(wanted), ids]);
	const groups = loaded.data?.by === by ? loaded.data.groups : [];
	const left = (memory.lists.groups ??= { cursor: null });
	const { cursor, setCursor, move } = useCursor(loaded.data?.groups, left);
	const [chosen, setChosen] = useState(new Set());
	useEffect(() => setChosen(new Set()), [by, JSON.stringify(wanted), ids]);

	const change = (fields, replace) => router.go(link("findings", null, { ...query, page: "", ...fields }), replace);
	const to = (group) => {
		const narrower = filtersOf(by, group.value);
		return narrower && link("findings", null, { ...query, page: "", group: "", ...narrower });
	};
	const enter = () => (memory.groups = location.hash); // where Escape leads from the list of a group
	const at = groups.find(({ id }) => id === cursor);
	const taken = () => (chosen.size ? groups.filter(({ id }) => chosen.has(id)) : at ? [at] : []);
	const read = async (several) => {
		const found = new Map();
		for (const { value } of several) {
			const tasks = await gather(page, { ...filters, ...filtersOf(by, value) }, (task) => isOf(by, value, task));
			for (const task of tasks) found.set(task.id, task); // one with two tags is in two groups
		}
		return [...found.values()].slice(0, MOST_GATHERED);
	};
	const sizeOf = (several) => several.reduce((sum, { total }) => sum + total, 0);
	const affected = () => (taken().length ? { length: sizeOf(taken()), ready: read(taken()) } : []);
	const choose = (group) => setChosen((old) => {
		const next = new Set(old);
		if (!next.delete(group.id)) next.add(group.id);
		return next;
	});
	useKeys({
		j: () => move(1),
		k: () => move(-1),
		g: () => change({ group: "" }),
		r: loaded.reload,
		Escape: () => setChosen(new Set()),
		...(full ? { x: () => at && choose(at), X: () => setChosen(new Set(groups.map(({ id }) => id))) } : {}),
		...triageKeys(page, affected, () => []),
	});
	const columns = { title: GROUPINGS[by], total: "Findings", ...Object.fromEntries(SEVERITIES.map((name) => [`of-${name}`, capital(name)])) };
	const before = full && html`<th role="columnheader" scope="col" class="choose"><span class="hidden">Select</span></th>`;
	return html`
		<${Heading} title="Findings">
			<p class="total" role="status">${loaded.data ? count(groups.length, "group") : ""}</p>
		<//>
		<${Filters} query=${query} onChange=${change} search=${search} people=${[]} />
		<${Loaded} from=${loaded} what="groups">
			${({ others }) => (groups.length === 0
				? html`<${Nothing} title="No finding is like that"><p><a href=${link("findings", null, { group: by })}>Group all findings</a></p><//>`
				: html`
					<${Table} name="Findings by ${GROUPINGS[by]}" kind="groups ${full ? "full" : ""}" busy=${loaded.loading} columns=${columns} before=${before}>
						${groups.map((group) => html`
							<${Row} key=${group.id} group=${group} full=${full} to=${to(group)} enter=${enter} here=${group.id === cursor}
								setCursor=${setCursor} chosen=${chosen.has(group.id)} choose=${choose} />`)}
					<//>
					${others > 0 && html`<p class="muted">${count(others, "finding")} in smaller groups.</p>`}`)}
		<//>
		${full && chosen.size > 0 && html`
			<section class="actions" aria-label="What to do with the selected groups">
				<strong aria-live="polite">${count(chosen.size, "group")} selected, ${count(sizeOf(taken()), "finding")}</strong>
				<${TriageButtons} chosen=${affected} people=${() => []} />
				<button class="quiet" onClick=${() => setChosen(new Set())}>Clear</button>
			</section>`}`;
}

function Row({ group, full, to, enter, here, setCursor, chosen, choose }) {
	const { value, total, bySeverity } = group;
	const name = html`<${Text} of=${value} missing="None" />`;
	const arrive = () => setCursor(group.id);
	return html`
		<tr role="row" class="${here ? "here" : ""} ${chosen ? "chosen" : ""}">
			${full && html`
				<${Cell} kind="choose"><label>
					<input type="checkbox" checked=${chosen} aria-label="Select: ${value ?? "none"}" onChange=${() => choose(group)} />
				</label><//>`}
			<${RowHead}>
				${to
					? html`<a id="row-${group.id}" href=${to} title=${value} onFocus=${arrive} onClick=${enter}>${name}</a>`
					: html`<span id="row-${group.id}" tabindex="0" onFocus=${arrive}>${name}</span>`}
			<//>
			<${Cell} kind="number total">${number(total)}<//>
			${SEVERITIES.map((severity) => html`
				<${Cell} kind="number" empty=${!bySeverity[severity]}>${bySeverity[severity] > 0 && html`
					<span class="severity-${severity}">${number(bySeverity[severity])}<span class="narrow"> ${severity}</span></span>`}<//>`)}
		</tr>`;
}
