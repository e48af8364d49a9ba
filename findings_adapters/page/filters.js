// Filters of lists. The address holds them under the API's names.

import { GROUPINGS } from "./grouping.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLayoutEffect, useLoad, usePage, useRef, useState, useStore } from "./lib.js";
import { Field, Select, Text, Toggles } from "./parts.js";
import { readRoute, toFindings } from "./route.js";
import { capital, count, OUTCOMES, SEVERITIES, STATUS_NAMES, STATUSES } from "./words.js";

const LABELS = { // of the filters that are shown as chips
	projectType: "Type",
	targetUrl: "Target",
	branch: "Branch",
	mainLine: "Main branch",
	assignee: "Assignee",
	assigned: "Assigned",
	claimed: "Claim",
	proposed: "Proposal",
	verified: "Verification",
	createdSince: "Created since",
	createdBefore: "Created before",
	rule: "Rule",
	location: "File",
	tag: "Tag",
	without: "Without",
	runId: "Reported by run",
	newIn: "New in run",
	missingFrom: "Missing from run",
	externalId: "External ID",
};
const FILTER_NAMES = ["q", "status", "severity", ...Object.keys(LABELS)];
const SORTS = [["severity", "Most severe first"], ["-createdAt", "Newest first"], ["createdAt", "Oldest first"]];
const CHIPS = {
	mainLine: { true: "Main branch", false: "Other branches" },
	assigned: { true: "Assigned", false: "Unassigned" },
	claimed: { true: "Claimed", false: "Not claimed" },
	proposed: { true: "With a proposal", false: "Without a proposal" },
	verified: { ...OUTCOMES, none: "Not verified" },
	without: { rule: "No rule", location: "No file", tag: "No tag" },
};
const KINDS = { "open,in_progress": "unresolved", "resolved,dismissed": "closed" };
const SEVERITY_NAMES = Object.fromEntries(SEVERITIES.map((name) => [name, capital(name)]));
const MAIN = " "; // no branch has this name
const PAUSE = 200; // milliseconds from the last key to a search
const DAY = /^\d{4}-\d\d-\d\d$/;
const dayBefore = (days) => new Date(Date.now() - 86_400_000 * days).toISOString().slice(0, 10);
const DAYS_AGO = /^(\d{1,4})d$/; // "7d" in an address selects the last week on any day

/** Return an address's query as the API has it. */
export function queryOf(query) {
	const given = {};
	for (const name of ["sort", ...FILTER_NAMES]) if (query[name]?.trim()) given[name] = query[name];
	for (const name of ["createdSince", "createdBefore"]) {
		given[name] = given[name]?.replace(DAYS_AGO, (_, days) => dayBefore(days)).replace(DAY, "$&T00:00:00.000Z");
	}
	return given;
}

/** Return a finding's target without its scheme, and its branch. */
export function targetName({ targetUrl, branch }) {
	const target = targetUrl?.replace(/^https?:\/\//, "").replace(/\/$/, "");
	return branch ? `${target ?? ""} (${branch})` : target;
}

async function loadNames(get) {
	const [{ projectTypes }, { groups }, { runs }] = await Promise.all(
		[get("project-types"), get("groups", { by: "targetUrl", limit: 200 }), get("runs", { limit: 200 })]);
	const targets = [...groups.map(({ value }) => value), ...runs.map(({ targetUrl }) => targetUrl)];
	return [projectTypes.map(({ name }) => name), targets, runs.map(({ branch }) => branch)];
}

const optionsOf = (all, names = [], present) =>
	[["", all], ...[...new Set([...names, present])].filter(Boolean).sort().map((name) => [name, name.replace(/^https:\/\//, "")])];

export const controlOf = (name, query, onChange) => ({ label: LABELS[name], value: query[name], onChange: (value) => onChange({ [name]: value }) });

/** Select a type, a target and a branch, whose names load once the view is `ready`. `one` leaves out "All branches"; `target` replaces the field. */
export function Where({ query, onChange, one, target, ready = true }) {
	const [types, targets, branches] = useLoad(async (get) => (ready ? loadNames(get) : []), [ready]).data ?? [];
	const select = (name, all, names) => html`<${Select} ...${controlOf(name, query, onChange)} options=${optionsOf(all, names, query[name])} />`;
	const [all, ...others] = optionsOf("All branches", branches, query.branch);
	return html`
		${select("projectType", "All types", types)}
		${target ?? select("targetUrl", "All targets", targets)}
		<${Select} label="Branch" value=${query.branch || (query.mainLine === "true" ? MAIN : "")} options=${[...(one ? [] : [all]), [MAIN, "Main branch"], ...others]}
			onChange=${(value) => onChange({ mainLine: value === MAIN ? "true" : "", branch: value.trim() })} />`;
}

function Search({ value, onSearch }) {
	const { memory } = usePage();
	const input = useRef(null);
	const [text, setText] = useState(value);
	useLayoutEffect(() => setText((typed) => (typed.trim() === value ? typed : value)), [value]);
	useEffect(() => {
		const timer = setTimeout(() => text.trim() !== value && onSearch(text.trim()), PAUSE);
		return () => clearTimeout(timer);
	}, [text, value]);
	useKeys({ "/": () => input.current.select() });
	useLayoutEffect(() => { // before the next key is handled
		if (memory.searching) input.current.select();
		memory.searching = false;
	}, []);
	const onKeyDown = (event) => {
		if (event.key !== "Escape") return;
		event.preventDefault(); // otherwise the browser clears the field
		event.target.blur();
	};
	return html`
		<input ref=${input} class="search" type="search" value=${text} placeholder="Search" aria-label="Search findings" title="Search (/)"
			autocomplete="off" maxlength="500" onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} />`;
}

const hasFiltersOf = (query, address) => JSON.stringify(query, FILTER_NAMES) === JSON.stringify(readRoute(address).query, FILTER_NAMES);

/** Return a list in words, such as "14 unresolved findings on the main branch". */
export function titleOf(total, { status, mainLine, branch, runId, newIn, missingFrom }) {
	const kind = KINDS[status] ?? STATUS_NAMES[status]?.toLowerCase();
	const where = branch ? `branch ${branch}` : mainLine === "true" ? "the main branch" : mainLine ? "other branches" : "all branches";
	return `${count(total, kind ? `${kind} finding` : "finding")}${runId || newIn || missingFrom ? "" : ` on ${where}`}`;
}

const sum = ({ groups }, name, values) =>
	Object.fromEntries(values.map((value) => [value, groups.reduce((total, group) => total + group[name][value], 0)]));

/** Count the findings of each status and severity, without its own filter. The list is loaded first. */
function useCounts(filters, isReady, list) {
	const inputs = [JSON.stringify(filters), isReady, list];
	const { data, error } = useLoad(async (get) => {
		if (!isReady) return new Promise(() => {}); // the next inputs end it
		const without = (own) => get("groups", { ...filters, sort: "", by: "projectType", limit: 200, ...own });
		const first = without({ status: "" });
		const [byStatus, bySeverity] = await Promise.all([first, filters.status || filters.severity ? without({ severity: "" }) : first]);
		return { status: sum(byStatus, "byStatus", STATUSES), severity: sum(bySeverity, "bySeverity", SEVERITIES) };
	}, inputs);
	return (!error && data) || {};
}

/** A text field that suggests the values that the other filters leave. */
function Suggested({ name, filters, first = [], ...more }) {
	const { api } = usePage();
	const [values, setValues] = useState([]);
	const fill = () => api.get("groups", { ...filters, sort: "", [name]: "", ...(name === "assignee" && { assigned: "" }), by: name, limit: 200 })
		.then(({ groups }) => setValues(groups.map(({ value }) => value).filter(Boolean)), () => {});
	return html`<${Field} options=${[...new Set([...first, ...values])]} onFocus=${fill} ...${more} />`;
}

const chipsOf = (query, onChange) => Object.keys(LABELS).filter((name) => query[name]).flatMap((name) => {
	const values = ["rule", "tag"].includes(name) ? query[name].split(/,(?! )/) : [query[name]]; // a comma before a space belongs to the value
	const days = name === "createdSince" && DAYS_AGO.exec(query[name]);
	return values.map((value) => html`
		<button class="chip" onClick=${() => onChange({ [name]: values.filter((each) => each !== value) })}>
			${days ? `Last ${days[1]} days` : CHIPS[name]?.[value] ?? html`${LABELS[name]}: <${Text} of=${value} />`} <span aria-hidden="true">×</span>
			<span class="hidden"> remove this filter</span></button>`);
});

export function Filters({ query, filters, change: onChange, isReady, data }) {
	const { me } = useStore(usePage().session);
	const [open, setOpen] = useState(false); // on narrow screens
	const [more, setMore] = useState(false);
	const counts = useCounts(filters, isReady, data);
	const chips = chipsOf(query, onChange);
	const mine = me.user ?? me.key;
	const views = {
		Unresolved: toFindings(),
		Mine: toFindings({ assignee: mine }),
		"Unassigned critical": toFindings({ assigned: "false", severity: "critical" }),
		"New this week": toFindings({ createdSince: "7d" }),
	};
	const set = chips.length + ["status", "severity"].filter((name) => query[name]).length;
	const of = (name) => controlOf(name, query, onChange);
	const suggested = (name, more) => html`<${Suggested} ...${of(name)} name=${name} filters=${filters} ...${more} />`;
	return html`
		<search class="filters ${open ? "open" : ""}">
			<div class="row">
				<nav class="saved" aria-label="Saved views">
					${Object.entries(views).map(([name, address]) => html`
						<a href=${address} aria-current=${hasFiltersOf(query, address) ? "true" : undefined}>${name}</a>`)}
				</nav>
				<${Search} value=${query.q ?? ""} onSearch=${(q) => onChange({ q }, true)} />
				<button class="fold" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>Filters (${set})</button>
				<${Select} ...${of("group")} label="Group by" options=${[["", "None"], ...Object.entries(GROUPINGS)]} />
				${!query.group && html`<${Select} ...${of("sort")} value=${query.sort || "-createdAt"} label="Sort" options=${SORTS} />`}
			</div>
			<div class="row">
				<${Toggles} ...${of("status")} label="Status" names=${STATUS_NAMES} counts=${counts.status} />
				<${Toggles} ...${of("severity")} label="Severity" names=${SEVERITY_NAMES} counts=${counts.severity} />
				<details onToggle=${(event) => setMore(event.target.open)}>
					<summary>More filters</summary>
					${more && html`<div class="grid">
						<${Where} query=${query} onChange=${onChange} target=${suggested("targetUrl")} />
						${suggested("assignee", { first: [mine], onChange: (assignee) => onChange({ assignee, assigned: "" }) })}
						${["assigned", "claimed", "proposed", "verified"].map((name) => html`
							<${Select} ...${of(name)} options=${[["", "Any"], ...Object.entries(CHIPS[name])]}
								onChange=${(value) => onChange({ [name]: value, ...(name === "assigned" && { assignee: "" }) })} />`)}
						${["rule", "location", "tag"].map((name) => suggested(name))}
						${["createdSince", "createdBefore"].map((name) => html`<${Field} ...${of(name)} type="date" value=${filters[name]?.slice(0, 10)} />`)}
					</div>`}
				</details>
				${chips}
				${!hasFiltersOf(query, views.Unresolved) && html`<a class="clear" href=${views.Unresolved}>Clear</a>`}
			</div>
		</search>`;
}
