// Decisions that agents propose, grouped by their values. People accept or reject them one by one, by group or all.

import { groupProposals } from "./decisions.js";
import { Where } from "./filters.js";
import { decideProposals, Proposed } from "./fixing.js";
import { gather, LIMIT } from "./gather.js";
import { useKeys } from "./keys.js";
import { html, useEffect, usePage, useStore } from "./lib.js";
import { Chosen, News, resume, Table, useList, useSelection } from "./lists.js";
import { By, Heading, Loaded, Nothing, Severity, Time } from "./parts.js";
import { alikeIn, Cut, Title } from "./rows.js";
import { checkLevel } from "./triage.js";
import { count, number, UNRESOLVED } from "./words.js";

const MOST = 1000; // proposals that are shown

/** Load the findings with proposals that are not decided yet, each group after its heading. */
async function load(page, kind, filters, number, signal) {
	const found = await gather(page, filters, MOST, signal);
	const pending = page.changes.pending.get();
	const groups = groupProposals(found.filter(({ id }) => !pending.has(id)));
	const items = groups.flatMap((group) => [group, ...group.tasks]);
	const tasks = groups.flatMap((group) => group.tasks);
	return { items, tasks, total: found.total - found.length + tasks.length, query: { ...filters, limit: LIMIT }, filters, etag: found.etag };
}

export function Proposals({ query }) {
	const page = usePage();
	const { changes, memory } = page;
	const { projectType, targetUrl, branch, mainLine } = query;
	const filters = { proposed: "true", status: UNRESOLVED, sort: "severity", projectType, targetUrl, branch, mainLine };
	if (resume(memory, "proposals", filters)) memory.walk.seen = null;
	const list = useSelection(useList("proposals", "proposals", query, filters, load));
	const { data, items, index, may, chosen, taken, setCursor } = list;
	const pending = useStore(changes.pending);
	const tasks = data?.tasks ?? [];
	useEffect(() => {
		if (data) memory.walk = { filters, items: tasks, first: 1, last: 1, more: false, total: tasks.length };
	}, [data]);
	const decide = (those, accepts) => {
		if (!checkLevel(page)) return;
		const open = those.filter(({ id }) => !pending.has(id));
		if (!open.length) return changes.say("Select a proposal first (j/k, x).");
		const next = !chosen.size && items.slice(index).find((item) => !(item.tasks ?? [item]).some((task) => open.includes(task)));
		decideProposals(page, open, accepts);
		if (next) setCursor(next.id, true);
	};
	const hop = (some) => {
		const heading = some.find((item) => item.tasks);
		if (heading) setCursor(heading.id, true);
	};
	useKeys({
		a: () => decide(taken, true),
		r: () => decide(taken, false),
		n: () => hop(items.slice(index + 1)),
		p: () => hop(items.slice(0, Math.max(index, 0)).reverse()),
		X: () => list.set(tasks),
		Escape: () => list.set([]),
	});
	const buttons = (those, named = "") => ["Accept", "Reject"].map((name, at) => html`
		<button class=${at || named ? "quiet" : "primary"} aria-label=${named && `${name}: ${named}`} onClick=${() => decide(those, at === 0)}>${name}</button>`);
	return html`
		<${Heading} title="Proposals" total=${data && count(data.total, "proposal")}>
			${!pending.size && html`<${News} kind="tasks" ...${list} hint="" />`}<//>
		<search class="filters"><div class="grid"><${Where} query=${query} onChange=${list.change} ready=${!!data} /></div></search>
		<${Loaded} from=${list} what="proposals">${() => (items.length === 0
			? html`<${Nothing} title="No proposals"><p>Agents propose decisions about findings, and people accept or reject them here.</p><//>`
			: html`
				<${Table} name="Proposals" kind="findings proposals" ...${list} columns=${columnsOf(tasks, query, may && buttons)} />
				${data.total > tasks.length && html`<p class="muted">Only the first ${number(tasks.length)} are shown.</p>`}`)}
		<//>
		<${Chosen} list=${list} text=${count(chosen.size, "proposal")}>${buttons(taken)}<//>`;
}

function columnsOf(tasks, query, buttons) {
	const alike = alikeIn(tasks, query);
	return [
		["severity", "Severity", ({ severity }) => severity && html`<${Severity} is=${severity} />`],
		["title", "Finding", (item) => (item.tasks
			? html`<strong id="row-${item.id}" tabindex="0"><${Proposed} of=${item.values} /></strong> <span class="muted">${count(item.tasks.length, "finding")}</span>`
			: html`<${Title} task=${item} alike=${alike} />`)],
		["why", "Proposal", ({ proposal }) => proposal && html`<${Cut} of=${proposal.comment} /><p class="muted"><${By} of=${proposal} />, <${Time} at=${proposal.at} /></p>`],
		...(buttons ? [["decision", "Decision", (item) => html`<div class="buttons">${buttons(item.tasks ?? [item], item.title)}</div>`]] : []),
	];
}
