// Project types: the kinds of findings, their descriptions and schemas.

import { pathOf } from "./api.js";
import { Code } from "./evidence.js";
import { html, useAnswer, usePage, useStore } from "./lib.js";
import { Table } from "./lists.js";
import { Fact, Heading, Loaded, NoneListed, Section, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { link, toFindings } from "./route.js";
import { mayDelete } from "./session.js";
import { DeleteButton } from "./triage.js";
import { count } from "./words.js";

const COLUMNS = [
	["title", "Type", ({ name, label }) => html`<a href=${link("project-types", name)}><${Text} of=${label} /></a>`],
	["wide", "Description", ({ description }) => description && html`<${Text} of=${description} />`],
	["age", "Age", ({ createdAt }) => html`<${Time} at=${createdAt} />`],
];

export function ProjectTypes() {
	const loaded = useAnswer("project-types", {});
	return html`
		<div class="centered">
			<${Heading} title="Project types" total=${loaded.data && count(loaded.data.projectTypes.length, "type")} />
			<${Loaded} from=${loaded} what="project types">${({ projectTypes }) => (projectTypes.length
				? html`<${Table} name="Project types" kind="types" columns=${COLUMNS} items=${projectTypes} />`
				: html`<${NoneListed} what="project type" />`)}<//>
		</div>`;
}

export function ProjectType({ id }) {
	const path = pathOf("project-types", id);
	const isFull = mayDelete(useStore(usePage().session));
	const loaded = useAnswer(path, {}, async (get) => {
		const [type, { total }] = await Promise.all([get(path), get("runs", { projectType: id, limit: 1 })]);
		return { ...type, runs: total };
	});
	return html`
		<div class="centered"><${Loaded} from=${loaded} what="the project type" title="Project type">${({ label, description, extensionSchema, createdAt, runs }) => html`
			<${Heading} title=${label} />
			<div class="columns">
				<div>
					<${Section} title="Description">${description ? html`<${Prose} of=${description} />` : html`<p class="muted">No description.</p>`}<//>
					<${Section} title="Extension schema">${extensionSchema === null
						? html`<p class="muted">No schema: anything is accepted.</p>`
						: html`<${Code} text=${JSON.stringify(extensionSchema, null, 2)} label="Extension schema" />`}<//>
				</div>
				<aside aria-label="Facts">
					<dl class="facts">
						<${Fact} name="Name"><${Text} of=${id} /><//>
						<${Fact} name="Registered"><${Time} at=${createdAt} long /><//>
						<${Fact} name="Related"><a href=${toFindings({ projectType: id })}>Unresolved findings</a>,${" "}
							<a href=${link("runs", null, { projectType: id })}>${count(runs, "run")}</a><//>
					</dl>
					${runs
						? isFull && html`<p class="muted"><button class="quiet" disabled aria-describedby="why">Delete…</button> <span id="why">Delete its runs first.</span></p>`
						: html`<${DeleteButton} what="this project type" path=${path} to=${link("project-types")} />`}
				</aside>
			</div>`}<//></div>`;
}
