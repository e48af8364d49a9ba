// The history of a finding: who changed what, when and why.

import { Evidence } from "./evidence.js";
import { html } from "./lib.js";
import { link } from "./route.js";
import { By, Severity, Status, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { OUTCOMES, REASONS, STATUS_NAMES, UNRESOLVED } from "./words.js";

const moved = ({ from, to }) => html`changed status ${STATUS_NAMES[from]} → <${Status} is=${to} />`;
const isReopened = ({ from, to }) => to === "open" && !UNRESOLVED.includes(from);
const words = (name) => name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`); // of `externalId`

const SENTENCES = {
	created: ({ to }) => html`reported this${to !== "open" && html` as <${Status} is=${to} />`}`,
	reported: (entry) => html`reported it again${entry.from !== entry.to && html` and ${isReopened(entry) ? "reopened it" : moved(entry)}`}${
		entry.changed.length > 0 && ` (${entry.changed.map(words).join(", ")} changed)`}`,
	status: ({ from, to, reason }) => (from !== to ? moved({ from, to }) : html`${reason ? "set" : "removed"} the reason for <${Status} is=${to} />`),
	comment: () => "commented",
	severity: ({ severity }) => html`set the severity to <${Severity} is=${severity} />`,
	linked: () => "changed the links",
	claimed: () => "claimed it",
	released: ({ by }) => (by ? "released it" : "released it because the claim expired"),
	verified: ({ outcome, criterion, from, to }) => html`checked it: ${OUTCOMES[outcome].toLowerCase()}${to && html` and ${moved({ from, to })}`}${criterion && html` (<${Text} of=${criterion} />)`}`,
	proposed: () => "proposed a decision",
	withdrawn: () => "removed the proposal",
	assigned: ({ assignee }) => (assignee ? html`assigned it to <strong><${Text} of=${assignee} /></strong>` : "unassigned it"),
};

export const HistoryEntry = ({ entry: { user, event, reason, runId, at, comment, commit, evidence, ...entry } }) => html`
	<li>
		<div>
			<${By} of=${{ user, ...entry }} />
			${user && html` <span class="muted">(<${Text} of=${entry.by} />)</span>`} ${SENTENCES[event]?.({ ...entry, reason }) ?? event}
			${reason && html`<span> · ${REASONS[reason] ?? reason}</span>`}
			${commit && html`<span> · commit <code><${Text} of=${commit.slice(0, 10)} /></code></span>`}
			${runId && html`<span> · <a href=${link("runs", runId)}>run</a></span>`}
			<span class="muted"> · <${Time} at=${at} long /></span>
		</div>
		${comment && html`<div class="said"><${Prose} of=${comment} /></div>`}
		${evidence?.length > 0 && html`<ol class="evidence">${evidence.map((item) => html`<${Evidence} item=${item} />`)}</ol>`}
	</li>`;
