// Project types: what kinds of findings there are.

import { pathOf } from "./api.js";
import { Code } from "./evidence.js";
import { html, useAnswer } from "./lib.js";
import { Table } from "./lists.js";
import { Fact, Heading, Loaded, NoneListed, Section, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { link } from "./route.js";
import { DeleteButton } from "./triage.js";
import { count } from "./words.js";

export function ProjectTypes() {
	const loaded = useAnswer("project-types", {});
	return html`
		<${Heading} title="Project types" total=${loaded.data && count(loaded.data.projectTypes.length, "type")} />
		<${Loaded} from=${loaded} what="project types">
			${({ projectTypes }) => (projectTypes.length
				? html`<${Table} name="Project types" kind="types" columns=${COLUMNS} items=${projectTypes} />`
				: html`<${NoneListed} what="project type" />`)}
		<//>`;
}

const COLUMNS = [
	["title", "Type", ({ name, label }) => html`<a href=${link("project-types", name)}><${Text} of=${label} /></a>`],
	["wide", "Description", ({ description }) => description && html`<${Text} of=${description} />`],
	["age", "Age", ({ createdAt }) => html`<${Time} at=${createdAt} />`],
];

export function ProjectType({ id }) {
	const loaded = useAnswer(pathOf("project-types", id), {});
	return html`<${Loaded} from=${loaded} what="the project type" title="Project type">${(type) => html`<${Whole} ...${type} />`}<//>`;
}

const Whole = ({ name, label, description, extensionSchema, createdAt }) => html`
	<${Heading} title=${label} />
	<div class="columns">
		<div>
			<${Section} title="Description" of=${description}><${Prose} of=${description} /><//>
			<${Section} title="Extension schema">
				${extensionSchema === null
					? html`<p class="muted">None: extensions may be anything.</p>`
					: html`<${Code} text=${JSON.stringify(extensionSchema, null, 2)} label="Extension schema" />`}
			<//>
		</div>
		<aside aria-label="Facts">
			<dl class="facts">
				<${Fact} name="Name"><${Text} of=${name} /><//>
				<${Fact} name="Registered"><${Time} at=${createdAt} long /><//>
				<${Fact} name="Its work"><a href=${link("findings", null, { projectType: name, status: "open" })}>Open findings</a>,${" "}
					<a href=${link("runs", null, { projectType: name })}>runs</a><//>
			</dl>
			<${DeleteButton} what="this project type" path=${pathOf("project-types", name)} to=${link("project-types")}>Only one without runs can be deleted.<//>
		</aside>
	</div>`;
