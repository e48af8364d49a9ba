// Webhooks, and whether their deliveries arrive.

import { pathOf } from "./api.js";
import { html, useAnswer, usePage, useState } from "./lib.js";
import { Table } from "./lists.js";
import { Form, Heading, Input, Loaded, Select, Text, Time } from "./parts.js";
import { link } from "./route.js";
import { DeleteButton } from "./triage.js";
import { capital, count, SEVERITIES, webAddress } from "./words.js";

const TYPES = ["run.finished", ...["created", "changed", "reopened", "status", "assigned", "commented"].map((name) => `finding.${name}`), "run.started"];
const WAYS_ON = { held: "Send what was refused again", next: "Go on behind it", latest: "Begin with what comes now" };

const COLUMNS = [
	["title", "To", ({ url }) => html`<span title=${url}><${Text} of=${webAddress(url)?.host} /></span>`],
	["told", "Tells of", ({ types, minSeverity, projectType, targetUrl, format }) =>
		html`<${Text} of=${[...types, minSeverity && `${minSeverity} or worse`, projectType, targetUrl, format].filter(Boolean).join(", ")} />`],
	["told", "State", ({ state, lastError }) => html`<span class=${state === "off" && "status-failed"}>${capital(state)}</span>
		${lastError && html`, last error: <${Text} of=${lastError} />`}`],
	["age", "Sent", ({ lastDeliveryAt: at }) => (at ? html`<${Time} at=${at} />` : "never")],
	["told", "To do", (hook) => html`<${Todo} ...${hook} />`],
];

function Todo({ id, state }) {
	const { api, changes } = usePage();
	const path = pathOf("webhooks", id);
	const test = async () => {
		const { data: { delivered, error } } = await api.request("POST", `${path}/test`);
		changes.say(delivered ? "The test was delivered." : `The test was not delivered: ${error}.`);
	};
	const goOn = async (from) => {
		await api.request("PATCH", path, { body: { state: "on", from } });
		changes.changed.set([]);
	};
	return html`
		<div class="buttons">
			<button onClick=${() => test().catch(changes.sayError)}>Test</button>
			${state === "off" && Object.entries(WAYS_ON).map(([from, text]) => html`
				<button onClick=${() => goOn(from).catch(changes.sayError)}>${text}</button>`)}
			<${DeleteButton} what="this webhook" path=${path} to=${link("webhooks")}>It is told of nothing any more.<//>
		</div>`;
}

export function Webhooks() {
	const { api, changes } = usePage();
	const loaded = useAnswer("webhooks", {});
	const [secret, setSecret] = useState("");
	const register = async (form) => {
		const given = new FormData(form);
		const body = Object.fromEntries([...given].filter(([, value]) => value));
		const { data } = await api.request("POST", "webhooks", { body: { ...body, types: given.getAll("types") } });
		setSecret(`Keep its secret, which is shown this once: ${data.secret}`);
		form.reset();
		changes.changed.set([]);
	};
	return html`
		<${Heading} title="Webhooks" total=${loaded.data && count(loaded.data.webhooks.length, "webhook")} />
		<${Loaded} from=${loaded} what="webhooks">
			${({ webhooks }) => html`<${Table} name="Webhooks" kind="webhooks" columns=${COLUMNS} items=${webhooks} />`}
		<//>
		<p role="alert">${secret}</p>
		<${Form} class="part" action="Register" onSubmit=${register}>
			<div class="grid">
				<${Input} label="URL" name="url" type="url" required />
				<${Select} label="Format" name="format" options=${[["json", "JSON, signed"], ["slack", "Slack"]]} />
				<${Select} label="Least severity" name="minSeverity" options=${[["", "Any"], ...SEVERITIES.map((name) => [name, capital(name)])]} />
			</div>
			<fieldset class="choices grid"><legend>Tells of</legend>
				${TYPES.map((type) => html`<label><input type="checkbox" name="types" value=${type} defaultChecked=${type === TYPES[0]} /> ${type}</label>`)}
			</fieldset>
		<//>`;
}
