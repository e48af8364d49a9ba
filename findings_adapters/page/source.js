// The source of a finding: links to its line at the scanned commit, and how its code is shown.

import { webAddress } from "./words.js";

const MOST_LINES = 24; // of code, before a click on "Show all"
const HOSTS = [ // parts of the URLs of a line and of a commit; as GitHub has them for all other hosts
	[/gitlab/, "/-/blob/", "#L", "/-/commit/"],
	[/bitbucket/, "/src/", "#lines-", "/commits/"],
	[/codeberg|gitea|forgejo/, "/src/commit/", "#L", "/commit/"],
	[/(?:)/, "/blob/", "#L", "/commit/"],
];

/** Return the path and line of a text like `./src/app.py:12:5`. */
export function placeOf(text) {
	const [, path, line] = /^(.*?)(?::(\d{1,9})(?::\d{1,9})?)?$/s.exec(text ?? "");
	return { path: path.replaceAll("\\", "/").replace(/^(?:\.\/)+/, ""), line: Number(line) || null };
}

/** Encode a path. Return null if it leads out of its repository. */
function encoded(path) {
	const leaves = /^[a-z][a-z\d+.-]*:|(?:^|\/)\.{0,2}(?:\/|$)/i.test(path);
	return leaves || !path.isWellFormed() ? null : encodeURIComponent(path).replaceAll("%2F", "/");
}

/** Return the repository and commit of a run, and the entry of its host. */
function known({ metadata }) {
	const address = webAddress(metadata.repository);
	const repository = address && (address.origin + address.pathname).replace(/(?:\.git)?\/*$/, "");
	return { repository, commit: /^[\da-z]{4,64}$/i.exec(metadata.commit ?? "")?.[0], host: HOSTS.find(([name]) => name.test(address?.hostname)) };
}

/** Return the URL of a task's line, or null. `run` is the one that last reported it. */
export function sourceLink({ location, extensions }, run) {
	const { path, line } = placeOf(location);
	if (!line && extensions.file !== path) return null; // without a line it may be something else than a file
	const { repository, commit, host: [, file, mark] } = known(run);
	const values = { repository, commit, path: encoded(path), line: line ?? 1 };
	const pattern = run.metadata.sourceUrl ?? `{repository}${file}{commit}/{path}${mark}{line}`;
	return webAddress(String(pattern).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? " "))?.href ?? null; // no URL contains a space
}

/** Return the {name, href} of a run's commit, if known. */
export function commitOf(run) {
	const { repository, commit, host } = known(run);
	return commit && { name: commit.slice(0, 10), href: repository && repository + host[3] + commit };
}

const documentOf = ({ instruction }) => webAddress(instruction.trim())?.href;

/** Return the URLs of those remediation steps that consist of a URL: they are documentation of the rule. */
export const documentsOf = ({ remediation }) => remediation.map(documentOf).filter(Boolean);

export const stepsOf = ({ remediation }) => remediation.filter((step) => !documentOf(step));

/** Return whether evidence is a unified diff, as of `git diff` or `diff -u`. */
export const isDiff = (type, content) => /^(?:diff|patch)$/i.test(type) || /^(?:diff --git |--- .*\n\+\+\+ |@@ -\d)/.test(content);

/** Return for each line of a diff whether it is "added", "removed", the head of a "hunk" or other (""). */
export function diffKinds(lines) {
	let inHunk = false;
	return lines.map((line, at) => {
		if (/^(?:@@|(?:diff|index|Index:) )/.test(line)) inHunk = line[0] === "@";
		if (line.startsWith("--- ") && lines[at + 1]?.startsWith("+++ ")) inHunk = false;
		const isHead = !inHunk && /^(?:---|\+\+\+) /.test(line);
		return (!isHead && { "+": "added", "-": "removed", "@": "hunk" }[line[0]]) || "";
	});
}

/** Return the range of lines that are shown at first: the first ones, or those around the marked one. */
export function foldedRange(count, mark) {
	const end = Math.min(count, mark < MOST_LINES || mark >= count ? MOST_LINES : mark + MOST_LINES / 2);
	return [Math.max(0, end - MOST_LINES), end];
}
