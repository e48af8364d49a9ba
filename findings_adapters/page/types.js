// Project types: what kinds of findings there are.

import { pathOf } from "./api.js";
import { Code } from "./evidence.js";
import { html, useLoad, usePage } from "./lib.js";
import { Fact, Heading, HowToSend, Loaded, Nothing, Text, Time } from "./parts.js";
import { Prose } from "./prose.js";
import { link } from "./route.js";
import { DeleteButton } from "./triage.js";
import { count } from "./words.js";

export function ProjectTypes() {
	const { api } = usePage();
	const loaded = useLoad((signal) => api.get("project-types", {}, signal), []);
	return html`
		<${Heading} title="Project types"><p class="total" role="status">${loaded.data ? count(loaded.data.projectTypes.length, "type") : ""}</p><//>
		<${Loaded} from=${loaded} what="project types">
			${({ projectTypes }) => (projectTypes.length
				? html`<ul class="rows types">${projectTypes.map((type) => html`<${Row} type=${type} />`)}</ul>`
				: html`<${Nothing} title="No project types yet"><${HowToSend} /><//>`)}
		<//>`;
}

const Row = ({ type }) => html`
	<li>
		<span class="what"><a href=${link("project-types", type.name)}><${Text} of=${type.label} /></a>
			${type.label !== type.name && html` <span class="muted"><${Text} of=${type.name} /></span>`}
			${type.description && html`<span class="muted clamped"><${Text} of=${type.description} /></span>`}</span>
		<span class="muted"><${Time} at=${type.createdAt} /></span>
	</li>`;

export function ProjectType({ id }) {
	const { api } = usePage();
	const loaded = useLoad((signal) => api.get(pathOf("project-types", id), {}, signal), [id]);
	return html`
		<nav class="trail" aria-label="Trail"><a href=${link("project-types")}>Project types</a></nav>
		<${Loaded} from=${loaded} what="the project type" title="Project type">${(type) => html`<${Whole} type=${type} />`}<//>`;
}

const Whole = ({ type }) => html`
	<${Heading} title=${type.label} />
	<div class="columns">
		<div class="main">
			${type.description && html`<section><h2>Description</h2><${Prose} of=${type.description} /></section>`}
			<section>
				<h2>Extension schema</h2>
				${type.extensionSchema === null
					? html`<p class="muted">None: extensions may be anything.</p>`
					: html`<${Code} text=${JSON.stringify(type.extensionSchema, null, 2)} label="Extension schema" />`}
			</section>
		</div>
		<aside aria-label="Facts"><dl class="facts">
			<${Fact} name="Name"><${Text} of=${type.name} /><//>
			<${Fact} name="Registered"><${Time} at=${type.createdAt} long /><//>
			<${Fact} name="Its work">
				<a href=${link("findings", null, { projectType: type.name, status: "open" })}>Open findings</a>,${" "}
				<a href=${link("runs", null, { projectType: type.name })}>runs</a><//>
		</dl>
		<${DeleteButton} what="this project type" path=${pathOf("project-types", type.name)} to=${link("project-types")}>Only one without runs can be deleted.<//></aside>
	</div>`;
