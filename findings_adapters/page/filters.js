// Filters of lists; the address has them under the API's names.

import { GROUPINGS } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLayoutEffect, useLoad, usePage, useRef, useState } from "./lib.js";
import { Field, Select, Text, Toggles } from "./parts.js";
import { capital, SEVERITIES, STATUS_NAMES, YES_OR_NO } from "./words.js";

const LABELS = { // of filters with a chip; the others show their values
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
export const FILTER_NAMES = ["q", "status", "severity", ...Object.keys(LABELS)];
const SORTS = [["", "Newest first"], ["createdAt", "Oldest first"], ["severity", "Most severe first"]];
const SEVERITY_NAMES = Object.fromEntries(SEVERITIES.map((name) => [name, capital(name)]));
const PAUSE = 200; // milliseconds from the last key to a search
const DAY = /^\d{4}-\d\d-\d\d$/;

export function queryOf(query) {
	const given = {};
	for (const name of ["sort", ...FILTER_NAMES]) if (query[name]?.trim()) given[name] = query[name];
	for (const name of ["createdSince", "createdBefore"]) {
		if (DAY.test(given[name] ?? "")) given[name] += "T00:00:00.000Z";
	}
	return given;
}

/** Return a finding's target, without what all have, and its branch. */
export function placeOf({ targetUrl, branch }) {
	const target = targetUrl?.replace(/^https?:\/\//, "").replace(/\/$/, "");
	return branch ? `${target ?? ""} (${branch})` : target;
}

async function loadNames(get) {
	const [{ projectTypes }, { runs }] = await Promise.all([get("project-types"), get("runs", { limit: 200 })]);
	const distinct = (name) => [...new Set(runs.map((run) => run[name]).filter(Boolean))].sort();
	return { types: projectTypes.map(({ name }) => name), targets: distinct("targetUrl"), branches: distinct("branch") };
}

/** Return options for names, and for what else the address asks for. */
const optionsOf = (names, present, sign = "") =>
	[...new Set([...names, ...(present ? [present] : [])])].map((name) => [sign + name, name]);

/** Return the properties of a filter's control. */
export const controlOf = (name, query, onChange) => ({ label: LABELS[name], value: query[name], onChange: (value) => onChange({ [name]: value }) });

/** Choose where; `one` offers no choice of all branches. */
export function Where({ query, onChange, one }) {
	const { branch, mainLine } = query;
	const { types = [], targets = [], branches = [] } = useLoad(loadNames, []).data ?? {};
	const lines = [...(one ? [] : [["", "All branches"]]), ["main", "Main line"], ...optionsOf(branches, branch, "=")];
	return html`
		<${Select} ...${controlOf("projectType", query, onChange)} options=${[["", "All types"], ...optionsOf(types, query.projectType)]} />
		<${Field} ...${controlOf("targetUrl", query, onChange)} options=${targets} />
		<${Select} label="Branch" value=${branch ? `=${branch}` : mainLine === "true" ? "main" : ""} options=${lines}
			onChange=${(line) => onChange({ mainLine: line === "main" ? "true" : "", branch: line.startsWith("=") ? line.slice(1) : "" })} />`;
}

function Search({ value, onSearch }) {
	const { memory } = usePage();
	const input = useRef(null);
	const [text, setText] = useState(value);
	const search = () => text.trim() !== value && onSearch(text.trim());
	useLayoutEffect(() => setText((typed) => (typed.trim() === value ? typed : value)), [value]);
	useEffect(() => {
		const timer = setTimeout(search, PAUSE);
		return () => clearTimeout(timer);
	}, [text, value]);
	useKeys({ "/": () => input.current.select() });
	useEffect(() => {
		if (memory.searching) input.current.select();
		memory.searching = false;
	}, []);
	const onKeyDown = (event) => {
		if (event.key === "Enter") search();
		if (event.key === "Escape") {
			event.preventDefault(); // browsers empty it
			event.target.blur();
		}
	};
	return html`
		<input ref=${input} class="search" type="search" value=${text} placeholder="Search" aria-label="Search findings" title="Search (/)"
			autocomplete="off" maxlength="500" onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} />`;
}

const SEVERAL = ["rule", "tag"]; // a comma with a space behind it is within a value

const chipsOf = (query) => Object.keys(LABELS).filter((name) => query[name]).flatMap((name) => {
	const values = SEVERAL.includes(name) ? query[name].split(/,(?! )/) : [query[name]];
	return values.map((value) => ({ name, value, rest: values.filter((each) => each !== value) }));
});

export function Filters({ query, onChange, people }) {
	const of = (name) => controlOf(name, query, onChange);
	return html`
		<search class="filters">
			<div class="row">
				<${Search} value=${query.q ?? ""} onSearch=${(q) => onChange({ q }, true)} />
				<${Select} ...${of("group")} label="Group by" options=${[["", "Nothing"], ...Object.entries(GROUPINGS)]} />
				${!query.group && html`<${Select} ...${of("sort")} label="Sort" options=${SORTS} />`}
			</div>
			<div class="row">
				<${Toggles} ...${of("status")} label="Status" names=${STATUS_NAMES} />
				<${Toggles} ...${of("severity")} label="Severity" names=${SEVERITY_NAMES} />
				<details>
					<summary>More filters</summary>
					<div class="grid">
						<${Where} query=${query} onChange=${onChange} />
						<${Field} ...${of("assignee")} options=${people} onChange=${(assignee) => onChange({ assignee, assigned: "" })} />
						<${Select} ...${of("assigned")} options=${[["", "Any"], ["true", "To somebody"], ["false", "To nobody"]]}
							onChange=${(assigned) => onChange({ assigned, assignee: "" })} />
						${["rule", "location", "tag"].map((name) => html`<${Field} ...${of(name)} />`)}
						${["createdSince", "createdBefore"].map((name) => html`<${Field} ...${of(name)} type="date" value=${query[name]?.slice(0, 10)} />`)}
					</div>
				</details>
			</div>
			<div class="row">
				${chipsOf(query).map(({ name, value, rest }) => html`
					<button class="chip" onClick=${() => onChange({ [name]: rest })}>
						${LABELS[name]}: <${Text} of=${YES_OR_NO[value] ?? value} /> <span aria-hidden="true">×</span><span class="hidden"> remove this filter</span>
					</button>`)}
			</div>
		</search>`;
}
