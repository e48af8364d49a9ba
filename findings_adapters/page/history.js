// The history of a finding: who changed what, when and why.

import { html } from "./lib.js";
import { link } from "./route.js";
import { Status, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { REASONS, STATUS_NAMES, UNRESOLVED } from "./words.js";

const moved = ({ from, to }) => html`changed status ${STATUS_NAMES[from]} → <${Status} is=${to} />`;
const isReopened = ({ from, to }) => to === "open" && !UNRESOLVED.includes(from);
const words = (name) => name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`); // of `externalId`

const SENTENCES = {
	created: ({ to }) => html`reported this${to !== "open" && html` as <${Status} is=${to} />`}`,
	reported: (entry) => html`reported it again${entry.from !== entry.to && html` and ${isReopened(entry) ? "reopened it" : moved(entry)}`}${
		entry.changed.length > 0 && ` (${entry.changed.map(words).join(", ")} changed)`}`,
	status: ({ from, to, reason }) => (from !== to ? moved({ from, to }) : html`${reason ? "set" : "removed"} the reason for <${Status} is=${to} />`),
	comment: () => "commented",
	assigned: ({ assignee }) => (assignee ? html`assigned it to <strong><${Text} of=${assignee} /></strong>` : "unassigned it"),
};

export const HistoryEntry = ({ entry: { user, by, event, reason, runId, at, comment, ...entry } }) => html`
	<li>
		<div>
			<strong><${Text} of=${user ?? by} missing="Someone" /></strong>
			${user && html` <span class="muted">(<${Text} of=${by} />)</span>`} ${SENTENCES[event]?.({ ...entry, reason }) ?? event}
			${reason && html`<span> · ${REASONS[reason] ?? reason}</span>`}
			${runId && html`<span> · <a href=${link("runs", runId)}>run</a></span>`}
			<span class="muted"> · <${Time} at=${at} long /></span>
		</div>
		${comment && html`<div class="said"><${Prose} of=${comment} /></div>`}
	</li>`;
