// The list of findings and its groups: filters, rows, selection and triage.

import { Filters, queryOf, titleOf } from "./filters.js";
import { gather, MOST_GATHERED, whileRead } from "./gather.js";
import { filtersOf, GROUPINGS, isOf, nameGroups, narrowed } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLayoutEffect, usePage, useRef } from "./lib.js";
import { Chosen, News, Pager, resume, Table, useList, useSelection } from "./lists.js";
import { Heading, Loaded, Menu, NoneListed, Severity, Text, Time } from "./parts.js";
import { link, toFindings } from "./route.js";
import { alikeIn, Cut, Decision, reasonOf, Title } from "./rows.js";
import { useTriage } from "./triage.js";
import { count, number, SEVERITIES, STATUS_NAMES } from "./words.js";

const MOST_EXPORTED = 100_000;
const MOST_GROUPS = 200; // the API's limit

export function Findings({ query }) {
	const { memory, router } = usePage();
	const filters = queryOf(query);
	const by = Object.hasOwn(GROUPINGS, query.group) && query.group;
	const seen = !by && resume(memory, "tasks", filters);
	let to = Object.keys(query).length === 0 && toFindings();
	if (seen) to = link("findings", null, { ...query, page: seen.page > 1 ? seen.page : "" });
	const isElsewhere = to && to !== location.hash;
	useLayoutEffect(() => {
		if (memory.walk) memory.walk.seen = null;
		if (isElsewhere) router.go(to, true);
	}, [to]);
	if (isElsewhere) return null;
	return html`<${by ? Groups : List} query=${query} filters=${filters} by=${by} />`;
}

const ListFrame = ({ list, title, extra, kind, table, rest, text, actions }) => html`
	<${Heading} title="Findings" total=${list.data && title}>${extra}<//>
	<${Filters} ...${list} />
	<${Loaded} from=${list} what=${kind}>
		${() => (list.items.length === 0
			? html`<${NoneListed} what="finding" view="findings" isFiltered />`
			: html`<${Table} kind=${kind} ...${list} ...${table} />${rest}`)}
	<//>
	<${Chosen} list=${list} text=${text}>${actions}<//>`;

function List({ query, filters }) {
	const page = usePage();
	const { changes, memory, router } = page;
	const list = useSelection(useList("findings", "tasks", query, filters));
	const { data, isReady, items, may, chosen, taken } = list;
	const { number: first, next, total = 0 } = data ?? {};
	const pending = useRef(null); // all matching findings, while they are read
	useEffect(() => void (pending.current = null), [chosen]);
	useEffect(() => {
		if (isReady) memory.walk = { filters, items, first, last: first, more: !!next, total };
	}, [data, isReady]);
	const most = Math.min(total, MOST_GATHERED);
	const rest = total > most ? `the first ${number(most)} of ${number(total)} findings` : undefined;
	const chooseMatching = async () => {
		const all = Object.assign(whileRead(page, most, gather(page, filters)), { label: rest });
		pending.current = all;
		const found = await all.ready.catch(() => null);
		if (pending.current !== all) return;
		pending.current = null;
		if (!found) return;
		list.set(found);
		if (rest) changes.say(`Selected the first ${number(found.length)} of ${number(total)} findings. The others are not selected.`);
	};
	const back = () => {
		pending.current?.cancel();
		if (chosen.size) list.set([]);
		else if (router.groups) router.go(router.groups);
		router.groups = "";
	};
	useKeys({
		g: () => list.change({ group: "rule" }),
		X: () => may && total && chooseMatching(),
		Escape: back,
	});
	const all = (kind) => chosen.size < most && html`
		<button class=${kind} onClick=${chooseMatching}>Select ${rest ? "the first" : "all"} ${number(most)} that match <kbd aria-hidden="true">X</kbd></button>`;
	const buttons = useTriage(() => pending.current ?? taken, taken, list.advance, all("quiet"));
	return html`
		<${ListFrame} list=${list} title=${titleOf(total, filters)} kind="findings" extra=${html`<${News} kind="tasks" ...${list} /><${Exports} filters=${filters} />`}
			table=${{ name: "Findings", columns: columnsOf(query, items) }} rest=${html`<${Pager} ...${list} />`}
			text=${chosen.size >= most && rest ? rest : count(chosen.size, "finding")} actions=${[all("roomy"), buttons]} />`;
}

function Exports({ filters }) {
	const { api, changes } = usePage();
	const save = async (type, name) => {
		changes.say(`Preparing ${name}…`);
		const response = await api.ask("GET", "tasks", { query: { ...filters, limit: MOST_EXPORTED }, headers: { Accept: type } });
		const href = URL.createObjectURL(await response.blob());
		Object.assign(document.createElement("a"), { href, download: name }).click();
		URL.revokeObjectURL(href);
		changes.say(response.headers.has("Link") ? `${name} has the first ${number(MOST_EXPORTED)} findings. Use filters to save the others.` : "");
	};
	return html`<${Menu} id="export" name="Export">${Object.entries({ csv: "text/csv", sarif: "application/sarif+json" }).map(([name, type]) => html`
		<button class="quiet" onClick=${() => save(type, `findings.${name}`).catch(changes.sayError)}>${name.toUpperCase()}</button>`)}<//>`;
}

/** The status is left out where a filter sets it; a reason never is. */
function columnsOf(query, tasks) {
	const tagged = (tag) => link("findings", null, { ...query, tag, page: "" });
	const alike = alikeIn(tasks, query);
	const isOne = STATUS_NAMES[query.status];
	return [
		["severity", "Severity", ({ severity }) => html`<${Severity} is=${severity} />`],
		["title", "Finding", (task) => html`
			<${Title} task=${task} alike=${alike}>${task.tags.map((tag) => html`<a class="kind" tabindex="-1" href=${tagged(tag)}><${Text} of=${tag} /></a>`)}<//>`],
		isOne
			? tasks.some(reasonOf) && ["status", "Reason", reasonOf]
			: ["status", "Status", (task) => html`<${Decision} of=${task} />`],
		["assignee", "Assignee", ({ assignee }) => html`<${Cut} of=${assignee} />`],
		["age", "Age", ({ createdAt }) => html`<${Time} at=${createdAt} />`],
	].filter(Boolean);
}

async function loadGroups({ api }, kind, filters, page, signal) {
	const { groups, others } = await api.get(kind, { ...filters, limit: MOST_GROUPS }, signal);
	return { others, filters, items: groups.map((group) => ({ ...group, id: JSON.stringify([filters.by, group.value]), title: group.value ?? "none" })) };
}

const sum = (groups) => groups.reduce((total, each) => total + each.total, 0);

function Groups({ query, filters, by }) {
	const page = usePage();
	const list = useSelection(useList("findings", "groups", query, { ...filters, sort: "", by }, loadGroups));
	const { data, items, chosen, taken } = list;
	const size = sum(taken);
	const read = async () => {
		const found = new Map();
		for (const { value } of taken) {
			const tasks = await gather(page, narrowed(filters, by, value));
			for (const task of tasks) if (isOf(by, value, task)) found.set(task.id, task); // a finding with two tags is in two groups
		}
		return [...found.values()].slice(0, MOST_GATHERED);
	};
	useKeys({
		g: () => list.change({ group: "" }),
		X: () => list.set(items),
		Escape: () => list.set([]),
	});
	const isEstimate = by === "tag" && taken.length > 1; // a finding with two tags counts twice
	const part = size > MOST_GATHERED ? `the first ${number(MOST_GATHERED)} of ` : isEstimate ? "up to " : "";
	const label = () => part + nameGroups(by, taken.map(({ value }) => value), size);
	const buttons = useTriage(() => (size ? Object.assign(whileRead(page, Math.min(size, MOST_GATHERED), read()), { label: label(), isEstimate }) : []));
	const others = data?.others;
	const all = by === "tag" ? "" : `${titleOf(sum(items) + others, filters)} in `; // a finding with two tags would count twice
	return html`
		<${ListFrame} list=${list} title=${all + count(items.length, others > 0 ? "largest group" : "group")} kind="groups"
			table=${{ name: `Findings by ${GROUPINGS[by]}`, columns: groupColumns(by, query, page.router, items) }}
			rest=${others > 0 && html`<p class="muted">${count(others, "finding")} in smaller groups.</p>`}
			text="${count(chosen.size, "group")}, ${count(size, "finding")}" actions=${buttons} />`;
}

function SeverityBar({ of: { bySeverity }, largest }) {
	const parts = SEVERITIES.filter((name) => bySeverity[name]);
	let x = 0;
	return html`
		<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
			${parts.map((name) => {
				const width = (100 * bySeverity[name]) / largest;
				x += width;
				return html`<rect class="severity-${name}" x=${x - width} width=${width} height="8" />`;
			})}
		</svg>
		<span class="cut">${parts.map((name, index) => html`${index > 0 && ", "}<span class="severity-${name}">${number(bySeverity[name])} ${name}</span>`)}</span>`;
}

function groupColumns(by, query, router, groups) {
	const enter = () => (router.groups = location.hash); // Escape leads from a group's list back here
	const nameOf = ({ id, value }) => {
		const name = html`<${Text} of=${value} missing="None" />`;
		return filtersOf(by, value)
			? html`<a id="row-${id}" href=${link("findings", null, { ...narrowed(query, by, value), group: "", page: "" })} title=${value} onClick=${enter}>${name}</a>`
			: html`<span id="row-${id}" tabindex="0">${name}</span>`;
	};
	const largest = Math.max(...groups.map(({ total }) => total));
	return [
		["title", GROUPINGS[by], nameOf],
		["number", "Findings", ({ total }) => html`${number(total)}<span class="narrow"> ${total === 1 ? "finding" : "findings"}</span>`],
		["shares", "Severity", (group) => html`<${SeverityBar} of=${group} largest=${largest} />`],
	];
}
