// The lines that describe a finding in lists, in cards and in parts of other views.

import { queryOf, targetName } from "./filters.js";
import { html, usePage } from "./lib.js";
import { Severity, Status, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { walkOf } from "./walk.js";
import { clock, cut, day, REASONS } from "./words.js";

export const Cut = ({ of, kind = "" }) => of && html`<span class="cut ${kind}" title=${of}><${Text} of=${of} /></span>`;

/** Show a location, cut before its last part: usually the file's name and line. */
function Location({ of }) {
	const start = of.lastIndexOf("/", of.length - 2) + 1;
	return html`
		<span class="location" title=${of}>${start > 0 && html`<span class="cut"><${Text} of=${of.slice(0, start)} /></span>`}<span
			class="cut file"><${Text} of=${of.slice(start)} /></span></span>`;
}

/** Return which parts of the second line are the same in all rows. */
export function alikeIn(tasks, query) {
	const same = (of) => tasks.every((task) => of(task) === of(tasks[0]));
	return { projectType: query.projectType || same((task) => task.projectType), target: same(targetName) || (query.targetUrl && same(({ branch }) => branch)) };
}

const Meta = ({ task, alike }) => html`
	<p class="meta">
		<${Cut} of=${task.rule} />
		${task.location && html`<${Location} of=${task.location} />`}
		${!alike.projectType && html`<${Cut} of=${task.projectType} kind="type" />`}
		${!alike.target && html`<${Cut} of=${targetName(task)} kind="target" />`}
		${task.claim && html`<${Cut} of="Claimed by ${cut(task.claim.user ?? task.claim.by, 60)} until ${clock(task.claim.until)}" />`}
	</p>`;

/** Show the title and the second line of a finding in a table. */
export const Title = ({ task, alike, children }) => html`
	<div class="line"><a id="row-${task.id}" href=${link("findings", task.id)} title=${task.title}><${Text} of=${task.title} /></a>${children}</div>
	<${Meta} task=${task} alike=${alike} />`;

/** Return why a finding is closed and until when, such as "until 1 Dec · Accepted risk". */
export const reasonOf = ({ reason, until }) => [until && `until ${day(until)}`, REASONS[reason] ?? reason].filter(Boolean).join(" · ");

export const Decision = ({ of: task }) => html`
	<${Status} is=${task.status} />${reasonOf(task) && html` <span class="reason">${reasonOf(task)}</span>`}`;

/** Show the first findings of the list that has the filters `list`. */
export function FindingRows({ tasks, whose, list }) {
	const { memory } = usePage();
	const alike = alikeIn(tasks, list);
	const open = () => (memory.walk = walkOf(queryOf(list)));
	return html`
		<ul class="rows">
			${tasks.map((task) => html`
				<li>
					<span class="severity"><${Severity} is=${task.severity} /></span>
					<div class="what"><a href=${link("findings", task.id)} onClick=${open}><${Text} of=${task.title} /></a><${Meta} task=${task} alike=${alike} /></div>
					${whose && html`<span class="muted"><${Text} of=${task.assignee} missing="Unassigned" /> · <${Time} at=${task.createdAt} /></span>`}
					<span><${Decision} of=${task} /></span>
				</li>`)}
		</ul>`;
}
