// What a list of findings is narrowed to. Every filter stands in the address under the API's own name.

import { GROUPINGS } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLoad, usePage, useRef, useState } from "./lib.js";
import { Field, Select, Text, Toggles } from "./parts.js";
import { capital, SEVERITIES, STATUS_NAMES } from "./words.js";

export const FILTER_NAMES = [
	"q", "status", "severity", "projectType", "targetUrl", "branch", "mainLine", "assignee", "assigned", "createdSince",
	"createdBefore", "externalId", "rule", "location", "tag", "without", "runId", "newIn", "missingFrom",
];
const SORTS = [["", "Newest first"], ["createdAt", "Oldest first"], ["severity", "Most severe first"]];
const SEVERITY_NAMES = Object.fromEntries(SEVERITIES.map((name) => [name, capital(name)]));
const PAUSE = 200; // milliseconds without a key before a search
const DAY = /^\d{4}-\d\d-\d\d$/;

export function queryOf(query) {
	const given = {};
	for (const name of ["sort", ...FILTER_NAMES]) if (query[name]?.trim()) given[name] = query[name];
	for (const name of ["createdSince", "createdBefore"]) {
		if (DAY.test(given[name] ?? "")) given[name] += "T00:00:00.000Z";
	}
	return given;
}

/** Return what a finding is about, short: its target without what all have, and its branch. */
export function placeOf({ targetUrl, branch }) {
	const target = targetUrl?.replace(/^https?:\/\//, "").replace(/\/$/, "");
	return branch ? `${target ?? ""} (${branch})` : target;
}

const listOf = (text) => (text ? text.split(",") : []);

async function loadNames(get) {
	const [{ projectTypes }, { runs }] = await Promise.all([get("project-types"), get("runs", { limit: 200 })]);
	const distinct = (name) => [...new Set(runs.map((run) => run[name]).filter(Boolean))].sort();
	return { types: projectTypes.map(({ name }) => name), targets: distinct("targetUrl"), branches: distinct("branch") };
}

/** Return options for names, and for what the address asks for besides: several values leave the field as they are. */
const optionsOf = (names, present, sign = "") =>
	[...new Set([...names, ...(present ? [present] : [])])].map((name) => [sign + name, name]);

/** What is of `one` line of development at a time has no choice of all. */
export function Where({ query: { projectType, targetUrl, branch, mainLine }, onChange, one }) {
	const { types = [], targets = [], branches = [] } = useLoad(loadNames, []).data ?? {};
	const lines = [...(one ? [] : [["", "All branches"]]), ["main", "Main line"], ...optionsOf(branches, branch, "=")];
	return html`
		<${Select} label="Type" value=${projectType} options=${[["", "All types"], ...optionsOf(types, projectType)]}
			onChange=${(name) => onChange({ projectType: name })} />
		<${Field} label="Target" value=${targetUrl} options=${targets} onChange=${(url) => onChange({ targetUrl: url })} />
		<${Select} label="Branch" value=${branch ? `=${branch}` : mainLine === "true" ? "main" : ""} options=${lines}
			onChange=${(line) => onChange({ mainLine: line === "main" ? "true" : "", branch: line.startsWith("=") ? line.slice(1) : "" })} />`;
}

function Search({ value, onSearch }) {
	const { memory } = usePage();
	const input = useRef(null);
	const [text, setText] = useState(value);
	const sent = useRef(value);
	const timer = useRef(0);
	useEffect(() => {
		if (value === sent.current) return; // what was typed here
		sent.current = value;
		setText(value);
	}, [value]);
	useKeys({ "/": () => input.current.select() });
	useEffect(() => {
		if (memory.searching) input.current.select();
		memory.searching = false;
		return () => clearTimeout(timer.current);
	}, []);
	const begin = (wanted) => {
		clearTimeout(timer.current);
		sent.current = wanted.trim();
		onSearch(sent.current);
	};
	const onInput = (event) => {
		const wanted = event.target.value;
		setText(wanted);
		clearTimeout(timer.current);
		timer.current = setTimeout(() => begin(wanted), PAUSE);
	};
	const onKeyDown = (event) => {
		if (event.key === "Enter") begin(text);
		if (event.key === "Escape") {
			event.preventDefault(); // browsers empty it
			event.target.blur();
		}
	};
	return html`
		<input ref=${input} class="search" type="search" value=${text} placeholder="Search" aria-label="Search findings"
			title="Search (/)" autocomplete="off" maxlength="500" onInput=${onInput} onKeyDown=${onKeyDown} />`;
}

const YES_OR_NO = { true: "yes", false: "no" };

const Chip = ({ label, value, onRemove }) => html`
	<button class="chip" onClick=${onRemove}><span>${label}: <${Text} of=${YES_OR_NO[value] ?? value} /></span> <span aria-hidden="true">×</span>
		<span class="hidden">remove this filter</span></button>`;

const CHIPS = {
	projectType: "Type",
	targetUrl: "Target",
	branch: "Branch",
	mainLine: "Main line",
	assignee: "Assignee",
	assigned: "Assigned",
	createdSince: "Created since",
	createdBefore: "Created before",
	rule: "Rule",
	location: "Location",
	tag: "Tag",
	without: "Without",
	runId: "Reported by run",
	newIn: "New in run",
	missingFrom: "Missing from run",
	externalId: "External id",
};
const SEVERAL = ["rule", "tag"]; // a comma with a space behind it is within a value

const chipsOf = (query) => Object.keys(CHIPS).filter((name) => query[name]).flatMap((name) => {
	const values = SEVERAL.includes(name) ? query[name].split(/,(?! )/) : [query[name]];
	return values.map((value) => ({ name, value, rest: values.filter((each) => each !== value) }));
});

export function Filters({ query, onChange, people }) {
	return html`
		<search class="filters">
			<div class="row">
				<${Search} value=${query.q ?? ""} onSearch=${(q) => onChange({ q }, true)} />
				<${Select} label="Group by" value=${query.group} options=${[["", "Nothing"], ...Object.entries(GROUPINGS)]}
					onChange=${(group) => onChange({ group })} />
				${!query.group && html`<${Select} label="Sort" value=${query.sort} options=${SORTS} onChange=${(sort) => onChange({ sort })} />`}
			</div>
			<div class="row">
				<${Toggles} label="Status" names=${STATUS_NAMES} chosen=${listOf(query.status)} onChange=${(status) => onChange({ status })} />
				<${Toggles} label="Severity" names=${SEVERITY_NAMES} chosen=${listOf(query.severity)} onChange=${(severity) => onChange({ severity })} />
				<details>
					<summary>More filters</summary>
					<div class="grid">
						<${Where} query=${query} onChange=${onChange} />
						<${Field} label="Assignee" value=${query.assignee} options=${people} onChange=${(assignee) => onChange({ assignee, assigned: "" })} />
						<${Select} label="Assigned" value=${query.assigned} options=${[["", "Any"], ["true", "To somebody"], ["false", "To nobody"]]}
							onChange=${(assigned) => onChange({ assigned, assignee: "" })} />
						${["rule", "location", "tag"].map((name) =>
							html`<${Field} label=${CHIPS[name]} value=${query[name]} onChange=${(value) => onChange({ [name]: value })} />`)}
						${["createdSince", "createdBefore"].map((name) => html`
							<${Field} label=${CHIPS[name]} type="date" value=${query[name]?.slice(0, 10)} onChange=${(value) => onChange({ [name]: value })} />`)}
					</div>
				</details>
			</div>
			<div class="row chips">
				${chipsOf(query).map(({ name, value, rest }) =>
					html`<${Chip} label=${CHIPS[name]} value=${value} onRemove=${() => onChange({ [name]: rest })} />`)}
			</div>
		</search>`;
}
