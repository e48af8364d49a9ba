// One finding, with its history.

import { API, pathOf } from "./api.js";
import { latestVerifications } from "./decisions.js";
import { Evidence } from "./evidence.js";
import { Claim, Links, Original, Proposal, Similar, Verified } from "./fixing.js";
import { HistoryEntry } from "./history.js";
import { useKeys } from "./keys.js";
import { html, keepAs, readKept, useAnswer, usePage, useRef, useStore } from "./lib.js";
import { News } from "./lists.js";
import { markdownOf } from "./markdown.js";
import { Address, Copy, Fact, Form, Heading, Loaded, Outside, Place, Section, Severity, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { link, readRoute, toFindings } from "./route.js";
import { Decision } from "./rows.js";
import { mayTriage } from "./session.js";
import { commitOf, documentsOf, sourceLink, stepsOf } from "./source.js";
import { DeleteButton, useTriage } from "./triage.js";
import { Value } from "./values.js";
import { Walk } from "./walk.js";
import { tagName } from "./wcag.js";
import { count, cut } from "./words.js";

export function Finding({ id }) {
	const { router: { go, origin }, session } = usePage();
	const full = mayTriage(useStore(session));
	const path = pathOf("tasks", id);
	const loaded = useAnswer("tasks", id, (get) => Promise.all([get(path), get(`${path}/history`)]));
	const tasks = loaded.data?.slice(0, 1) ?? [];
	useKeys({ r: loaded.reload, Escape: () => go(origin) });
	const buttons = useTriage(() => tasks, tasks);
	return html`
		<nav class="trail" aria-label="Trail">
			<a href=${origin}>${{ overview: "Overview", proposals: "Proposals", runs: "Run" }[readRoute(origin).view] ?? "Findings"}</a>
			<${Walk} id=${id} />
		</nav>
		<${Loaded} from=${loaded} what="the finding" title="Finding">${([task, entries]) => html`
			<${Whole} task=${task} ...${entries} path=${path} buttons=${full && buttons} origin=${origin}>
				<${News} kind=${path} ...${loaded} data=${task} /><//>`}<//>`;
}

const Step = ({ instruction, description, automatable, verification }) => html`
	<li><${Prose} of=${instruction ?? description} />${automatable && html`<span class="kind">machine-checkable</span> `}<${Verified} of=${verification} /></li>`;

function Whole({ task, history, next, path, buttons, origin, children }) {
	const { id, rule, location, branch, assignee, evidence, externalId, description, lastRunId, targetUrl } = task;
	const { data } = useAnswer(pathOf("runs", lastRunId)); // this run knows the repository
	const run = data?.id === lastRunId && data;
	const [commit, source] = run ? [commitOf(run), sourceLink(task, run)] : [];
	const address = new URL(link("findings", id), document.baseURI).href;
	const steps = stepsOf(task);
	const its = { task, may: !!buttons };
	const verifications = latestVerifications(history, task.verification);
	const criteria = task.successCriteria.map((each) => ({ ...each, verification: verifications.get(each.description) }));
	// link to the unresolved findings that share a value, on the main branch or on that of a finding of a branch only
	const alike = (to, of, more) => html`<a href=${toFindings({ ...(branch && { branch, mainLine: "" }), ...to })} ...${more}><${Text} of=${of} /></a>`;
	return html`
		<${Heading} title=${task.title} of=${cut(task.title, 60)}>
			<p class="badges"><${Severity} is=${task.severity} /> ${
				task.reportedSeverity && html`<span class="muted">(reported: ${task.reportedSeverity})</span> `}<${Decision} of=${task} /></p>${children}<//>
		<div class="lead">
			${location && html`<p><code><${Address} url=${location} /></code> ${source && html`<${Outside} href=${source}>View source<//>`} ${alike({ targetUrl, location }, "Other findings here")}</p>`}
			<p>
				${rule && html`<span>Rule ${alike({ rule }, rule)}</span>`}
				${documentsOf(task).map((href) => html`<${Outside} href=${href}><span title=${href}>Documentation</span><//>`)}
				<${Links} of=${task.links} />
				<span>${assignee ? html`Assigned to <strong><${Text} of=${assignee} /></strong>` : "Unassigned"}</span>
				<${Claim} ...${its} />
				<${Verified} of=${verifications.get(null)} />
			</p>
			<p class="copies"><${Copy} name="Copy link" text=${address} /><${Copy} name="Copy as Markdown" text=${() => markdownOf(task, address, source)} /></p>
		</div>
		${buttons && html`<div class="triage">${buttons}</div>`}
		<${Proposal} ...${its} />
		<div class="columns">
			<article>
				<${Section} title="Evidence" of=${evidence.length}>
					<ol class="evidence">${evidence.map((item) => html`<${Evidence} item=${item} location=${location} />`)}</ol><//>
				<${Section} title="Remediation" of=${steps.length}><ol class="steps">${steps.map(Step)}</ol><//>
				<${Section} title="Success criteria" of=${task.successCriteria.length}><ul class="steps">${criteria.map(Step)}</ul><//>
				<${Section} title="Description" of=${description}><${Prose} of=${description} /><//>
				<details class="technical"><summary>Technical details</summary>
					<dl>
						<${Fact} name="ID">${id}<//>
						<${Fact} name="External ID" of=${externalId}><${Text} of=${externalId} /><//>
						<${Fact} name="Scanner data" of=${Object.keys(task.extensions).length}><${Value} of=${task.extensions} /><//>
					</dl>
				</details>
				<${Section} title="History">
					<ol class="history">${history.map((entry) => html`<${HistoryEntry} entry=${entry} />`)}</ol>
					${next && html`<p class="muted">Only the first ${count(history.length, "entry", "entries")} are shown.</p>`}
					${buttons && html`<${CommentBox} task=${task} />`}
				<//>
			</article>
			<aside aria-label="Facts">
				<dl class="facts">
					<${Fact} name="Tags" of=${task.tags.length}>
						<ul class="tags">${task.tags.map((tag) => html`<li>${alike({ tag }, tagName(tag), { class: "kind", title: tag })}</li>`)}</ul><//>
					<${Place} of=${task} />
					<${Fact} name="First reported"><a href=${link("runs", task.runId)}><${Time} at=${task.createdAt} long /></a><//>
					<${Fact} name="Last reported"><a href=${link("runs", lastRunId)}><${Time} at=${task.lastSeenAt} long /></a><//>
					<${Fact} name="Commit" of=${commit}><${Outside} href=${commit?.href}><code>${commit?.name}</code><//><//>
					<${Fact} name="Reported">${count(task.timesSeen, "time")}<//>
					<${Fact} name="Duplicate of" of=${task.duplicateOf}><${Original} id=${task.duplicateOf} /><//>
				</dl>
				<${DeleteButton} what="this finding" path=${path} to=${origin}>Its history is deleted too.<//>
				<${Similar} ...${its} />
			</aside>
		</div>`;
}

/** A text field for a comment, which the key c and the button focus. An unsent text is kept until the tab is closed. */
function CommentBox({ task }) {
	const { changes } = usePage();
	const name = `findings:comment-${task.id}:${API.pathname}`;
	const field = useRef(null);
	const keep = (text) => keepAs(sessionStorage, name, text);
	const submit = async () => {
		const box = field.current;
		const comment = box.value;
		if (!comment.trim()) return;
		box.blur(); // single keys work again at once
		await changes.carryOut({ tasks: [task], fields: { comment }, verb: "Comment on", what: "Commented on " });
		if (box.value !== comment) return; // it was edited meanwhile
		box.value = "";
		keep("");
	};
	return html`
		<${Form} class="comment" action="Comment" onSubmit=${submit} other=${html`<span class="muted">Ctrl+Enter to submit (⌘ on Mac)</span>`}>
			<label class="field"><span>Comment</span>
				<textarea id="comment" ref=${field} rows="3" maxlength="4000" required defaultValue=${readKept(sessionStorage, name)} onInput=${(event) => keep(event.target.value)}
					onKeyDown=${(event) => event.key === "Escape" && event.target.blur()} /></label>
		<//>`;
}
