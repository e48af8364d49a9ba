// What agents that fix leave at a finding: claims, verifications, proposals, links and similar findings.

import { pathOf } from "./api.js";
import { acceptances } from "./decisions.js";
import { html, useAnswer, usePage, useStore } from "./lib.js";
import { By, Outside, Section, Status, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { link } from "./route.js";
import { Decision } from "./rows.js";
import { capital, clock, count, decisionName, OUTCOMES, webAddress } from "./words.js";

const ICONS = { fixed: "completed", still_present: "failed", inconclusive: "running" };
const BECAUSE = { rule: "same rule", location: "same file", words: "similar title" };

/** Show who works on a finding; who may triage can release it. */
export function Claim({ task: { id, claim }, may }) {
	const { api, changes } = usePage();
	const release = () => api.request("DELETE", pathOf("claims", claim.id), { query: { task: id } })
		.then(() => changes.say("Released."), changes.sayError).then(() => changes.changed.set([id]));
	return claim && html`
		<span>Claimed by <${By} of=${claim} /> until ${clock(claim.until)} ${may && html`<button class="quiet" onClick=${release}>Release</button>`}</span>`;
}

/** Show the outcome of a verification. */
export const Verified = ({ of }) => of && html`
	<span><${Status} is=${ICONS[of.outcome]} name=${OUTCOMES[of.outcome]} /> <span class="muted">by <${By} of=${of} />, <${Time} at=${of.at} /></span></span>`;

export const Links = ({ of }) => of.map(({ rel, url }) => html`
	<${Outside} href=${webAddress(url)?.href}><span title=${url}><${Text} of=${capital(rel.replaceAll("_", " "))} /></span><//>`);

export function Original({ id }) {
	const { data } = useAnswer(pathOf("tasks", id));
	return html`<a href=${link("findings", id)}><${Text} of=${data?.title} missing="another finding" /></a>`;
}

/** Name a proposed decision. */
export const Proposed = ({ of }) => html`${decisionName(of)}${of.duplicateOf && html` of <${Original} id=${of.duplicateOf} />`}`;

/** Accept or reject the proposals for findings. Undo keeps the proposals as they were, so it has to come before this is sent. */
export function decideProposals({ changes }, tasks, accepts) {
	const rejection = { tasks, rejects: true, fields: {}, verb: "Reject", what: "Rejected the proposal for " };
	changes.hold(accepts ? acceptances(tasks) : [rejection], `${accepts ? "Accepted" : "Rejected"} ${count(tasks.length, "proposal")}.`);
}

/** Show what is proposed for a finding, until it is decided. */
export function Proposal({ task, may }) {
	const page = usePage();
	const pending = useStore(page.changes.pending);
	const { proposal } = task;
	if (!proposal || pending.has(task.id)) return null;
	const button = (name, accepts) => html`<button class=${accepts && "primary"} onClick=${() => decideProposals(page, [task], accepts)}>${name}</button>`;
	return html`
		<section class="card" aria-label="Proposal">
			<p><${By} of=${proposal} /> proposes: <strong><${Proposed} of=${proposal} /></strong> <span class="muted">· <${Time} at=${proposal.at} /></span></p>
			<${Prose} of=${proposal.comment} />
			${may && html`<div class="buttons instead">${button("Accept", true)}${button("Reject", false)}</div>`}
		</section>`;
}

/** List findings that may be the same one, unless the service has no such list. */
export function Similar({ task, may }) {
	const { changes } = usePage();
	const { data } = useAnswer(pathOf("tasks", task.id, "/similar"));
	const dismiss = (id) => changes.carryOut({ tasks: [task], fields: { status: "dismissed", reason: "duplicate", duplicateOf: id }, verb: "Dismiss", what: "Dismissed " }).catch(changes.sayError);
	return html`
		<${Section} title="Similar" of=${data?.tasks.length}>
			<ul class="similar">${data?.tasks.map((one) => html`
				<li>
					<a href=${link("findings", one.id)}><${Text} of=${one.title} /></a>
					<p><${Decision} of=${one} /> <span class="muted">${one.because.map((name) => BECAUSE[name] ?? name).join(", ")}</span></p>
					${may && task.duplicateOf !== one.id && (one.duplicateOf === task.id
						? html`<p class="muted">Duplicate of this finding</p>`
						: html`<button aria-label="Dismiss as duplicate of: ${one.title}" onClick=${() => dismiss(one.duplicateOf ?? one.id)}>Dismiss as duplicate</button>`)}
				</li>`)}</ul><//>`;
}
