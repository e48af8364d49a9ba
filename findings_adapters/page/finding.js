// One finding, with its history.

import { pathOf } from "./api.js";
import { Evidence } from "./evidence.js";
import { HistoryEntry } from "./history.js";
import { useKeys } from "./keys.js";
import { html, useAnswer, usePage, useStore } from "./lib.js";
import { News } from "./lists.js";
import { Address, Fact, Heading, Loaded, Outside, Place, Section, Severity, Status, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { link, readRoute } from "./route.js";
import { mayTriage } from "./session.js";
import { commitOf, sourceLink } from "./source.js";
import { DeleteButton, useTriage } from "./triage.js";
import { Value } from "./values.js";
import { count, cut, REASONS } from "./words.js";

const ORIGINS = { overview: "Overview", runs: "Run" };

export function Finding({ id }) {
	const { router, memory, session } = usePage();
	const full = mayTriage(useStore(session));
	const loaded = useAnswer("tasks", id, async (get) => {
		const [task, first] = await Promise.all([get(pathOf("tasks", id)), get(pathOf("tasks", id, "/history"))]);
		return { task, history: first.history, more: first.next !== null };
	});
	const tasks = loaded.data ? [loaded.data.task] : [];
	const listed = memory.lists.findings?.list?.items ?? [];
	const index = listed.findIndex((each) => each.id === id);
	const [previous, next] = index < 0 ? [] : [listed[index - 1], listed[index + 1]];
	const step = (to) => {
		if (!to) return;
		memory.lists.findings.cursor = to.id;
		router.go(link("findings", to.id), true);
	};
	useKeys({
		j: () => step(next),
		k: () => step(previous),
		r: loaded.reload,
		Escape: () => router.go(router.origin),
	});
	const buttons = useTriage(() => tasks, tasks);
	return html`
		<nav class="trail" aria-label="Trail">
			<a href=${router.origin}>${ORIGINS[readRoute(router.origin).view] ?? "Findings"}</a>
			<span class="buttons">
				<button class="quiet" title="Previous (k)" disabled=${!previous} onClick=${() => step(previous)}>Previous</button>
				<button class="quiet" title="Next (j)" disabled=${!next} onClick=${() => step(next)}>Next</button>
			</span>
		</nav>
		<${Loaded} from=${loaded} what="the finding" title="Finding">${(data) => html`
			<${Whole} ...${data} buttons=${full && buttons} origin=${router.origin} news=${html`<${News} kind=${pathOf("tasks", id)} ...${loaded} data=${data.task} />`} />`}<//>`;
}

const Whole = ({ task, history, more, buttons, news, origin }) => html`
	<${Heading} title=${task.title} of=${cut(task.title, 60)}>
		<p class="badges"><${Severity} is=${task.severity} /> <${Status} is=${task.status} /></p>${news}<//>
	${buttons && html`<div class="triage">${buttons}</div>`}
	<div class="columns">
		<article>
			<${Section} title="Description" of=${task.description}><${Prose} of=${task.description} /><//>
			<${Section} title="Evidence" of=${task.evidence.length}><${Evidence} items=${task.evidence} location=${task.location} /><//>
			<${Section} title="Remediation" of=${task.remediation.length}>
				<ol class="steps">${task.remediation.map(({ step, instruction }) => html`<li value=${step}><${Prose} of=${instruction} /></li>`)}</ol><//>
			<${Section} title="Success criteria" of=${task.successCriteria.length}>
				<ul class="steps">${task.successCriteria.map(({ description, automatable }) => html`
					<li><${Prose} of=${description} />${automatable && html`<span class="kind">can be automated</span>`}</li>`)}</ul><//>
			<${Section} title="Extensions" of=${Object.keys(task.extensions).length}><${Value} of=${task.extensions} /><//>
			<${Section} title="History">
				<ol class="history">${history.map((entry) => html`<${HistoryEntry} entry=${entry} />`)}</ol>
				${more && html`<p class="muted">Only the first ${count(history.length, "entry", "entries")} are shown.</p>`}
			<//>
		</article>
		<aside aria-label="Facts">
			<${Facts} task=${task} />
			<${DeleteButton} what="this finding" path=${pathOf("tasks", task.id)} to=${origin}>Its history goes with it.<//>
		</aside>
	</div>`;

const Alike = ({ to, of, ...more }) => html`<a href=${link("findings", null, to)} ...${more}><${Text} of=${of} /></a>`;

/** Show facts in short. The run that last reported a finding tells the commit. */
function Facts({ task }) {
	const { data } = useAnswer(pathOf("runs", task.lastRunId));
	const run = data?.id === task.lastRunId && data;
	const [commit, source] = run ? [commitOf(run), sourceLink(task, run)] : [];
	return html`
		<dl class="facts">
			<${Fact} name="Reason" of=${task.reason}>${REASONS[task.reason] ?? task.reason}<//>
			<${Fact} name="Assignee"><${Text} of=${task.assignee} missing="Nobody" /><//>
			<${Fact} name="Rule" of=${task.rule}><${Alike} to=${{ rule: task.rule }} of=${task.rule} /><//>
			<${Fact} name="Location" of=${task.location}>
				<p><${Address} url=${task.location} /></p>
				${source && html`<p><${Outside} href=${source}>In the repository<//></p>`}
				<${Alike} to=${{ targetUrl: task.targetUrl, location: task.location }} of="Findings there" /><//>
			<${Fact} name="Tags" of=${task.tags.length > 0}>
				<ul class="tags">${task.tags.map((tag) => html`<li><${Alike} to=${{ tag }} of=${tag} class="kind" /></li>`)}</ul><//>
			<${Place} of=${task} />
			<${Fact} name="External id"><${Text} of=${task.externalId} /><//>
			<${Fact} name="First reported"><a href=${link("runs", task.runId)}><${Time} at=${task.createdAt} long /></a><//>
			<${Fact} name="Last reported"><a href=${link("runs", task.lastRunId)}><${Time} at=${task.lastSeenAt} long /></a><//>
			<${Fact} name="Commit" of=${commit}><${Outside} href=${commit?.href}><code>${commit?.name}</code><//><//>
			<${Fact} name="Reported">${count(task.timesSeen, "time")}<//>
			<${Fact} name="Id"><${Text} of=${task.id} /><//>
		</dl>`;
}
