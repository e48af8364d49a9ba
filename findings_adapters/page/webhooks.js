// Webhooks, the state of their deliveries, and a form that adds one.

import { pathOf } from "./api.js";
import { html, useAnswer, usePage, useState } from "./lib.js";
import { Table } from "./lists.js";
import { Copy, Form, Heading, Input, Loaded, Nothing, Select, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { DeleteButton } from "./triage.js";
import { capital, count, SEVERITIES, webAddress } from "./words.js";

const KINDS = "created changed reopened status assigned commented severity linked claimed released verified proposed withdrawn".split(" ");
const TYPES = ["run.finished", ...KINDS.map((name) => `finding.${name}`), "run.started"];
const RESUME = { held: "Retry failed delivery", next: "Skip it and resume", latest: "Resume with new events" };

const COLUMNS = [
	["title", "URL", ({ url }) => html`<span title=${url}><${Text} of=${webAddress(url)?.host} /></span>`],
	["events", "Events", ({ types, minSeverity, projectType, targetUrl, format }) =>
		html`<${Text} of=${[...types, minSeverity && `${minSeverity} or worse`, projectType, targetUrl, format].filter(Boolean).join(", ")} />`],
	["state", "State", ({ state, lastError }) => html`<span class=${state === "off" ? "status-failed" : "status-completed"}>${capital(state)}</span>
		${lastError && html`, last error: <${Text} of=${lastError} />`}`],
	["age", "Last delivery", ({ lastDeliveryAt: at }) => (at ? html`<${Time} at=${at} />` : "Never")],
	["todo", "Actions", (hook) => html`<${Todo} ...${hook} />`],
];

function Todo({ id, state }) {
	const { api, changes } = usePage();
	const path = pathOf("webhooks", id);
	const test = async () => {
		const { data: { delivered, error } } = await api.request("POST", `${path}/test`);
		changes.say(delivered ? "Test delivered." : `Test not delivered: ${error}.`);
	};
	const resume = async (from) => {
		await api.request("PATCH", path, { body: { state: "on", from } });
		changes.changed.set([]);
	};
	const button = (text, act) => html`<button onClick=${() => act().catch(changes.sayError)}>${text}</button>`;
	return html`
		<div class="buttons">
			${state === "off" && Object.entries(RESUME).map(([from, text]) => button(text, () => resume(from)))}
			${button("Test", test)}
			<${DeleteButton} what="this webhook" path=${path} to=${link("webhooks")}>Deliveries stop.<//>
		</div>`;
}

export function Webhooks() {
	const { api, changes } = usePage();
	const loaded = useAnswer("webhooks", {});
	const [secret, setSecret] = useState("");
	const add = async (form) => {
		const given = new FormData(form);
		const body = Object.fromEntries([...given].filter(([, value]) => value));
		const { data } = await api.request("POST", "webhooks", { body: { ...body, types: given.getAll("types") } });
		setSecret(data.secret);
		form.reset();
		changes.changed.set([]);
	};
	return html`
		<div class="centered">
			<${Heading} title="Webhooks" total=${loaded.data && count(loaded.data.webhooks.length, "webhook")} />
			<${Loaded} from=${loaded} what="webhooks">${({ webhooks }) => html`
				${webhooks.length
					? html`<${Table} name="Webhooks" kind="webhooks" columns=${COLUMNS} items=${webhooks} />`
					: html`<${Nothing} title="No webhooks yet"><p>A webhook sends a request to a URL, for example of a chat, when a run finishes or a finding changes.</p><//>`}
				<div role="alert">${secret && html`
					<p class="card secret">Signing secret, shown only once: <code>${secret}</code> <${Copy} text=${secret} /></p>`}</div>
				<section class="card">
					<h2>Add webhook</h2>
					<${Form} action="Add webhook" wrong="Couldn't add the webhook" onSubmit=${add}>
						<div class="grid">
							<${Input} label="URL" name="url" type="url" required placeholder="https://…" />
							<${Select} label="Format" name="format" options=${[["json", "JSON, signed"], ["slack", "Slack"]]} />
							<${Select} label="Minimum severity" name="minSeverity" options=${[["", "Any"], ...SEVERITIES.map((name) => [name, capital(name)])]} />
						</div>
						<fieldset class="choices grid"><legend>Events</legend>
							${TYPES.map((type) => html`<label><input type="checkbox" name="types" value=${type} defaultChecked=${type === TYPES[0]} /> ${type}</label>`)}
						</fieldset>
					<//>
				</section>`}<//>
		</div>`;
}
