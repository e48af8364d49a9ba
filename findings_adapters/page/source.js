// Links to a finding's source, at the scanned commit.

import { webAddress } from "./words.js";

const HOSTS = [ // how they show a file and a commit, by name; others are taken to be like GitHub
	[/gitlab/, "/-/blob/{commit}/{path}#L{line}", "/-/commit/{commit}"],
	[/bitbucket/, "/src/{commit}/{path}#lines-{line}", "/commits/{commit}"],
	[/codeberg|gitea|forgejo/, "/src/commit/{commit}/{path}#L{line}", "/commit/{commit}"],
	[/(?:)/, "/blob/{commit}/{path}#L{line}", "/commit/{commit}"],
];

/** Return the path and line of a text like `./src/app.py:12:5`. */
export function placeOf(text) {
	const [, path, line] = /^(.*?)(?::(\d{1,9})(?::\d{1,9})?)?$/.exec(text ?? "") ?? [];
	return { path: (path ?? "").replaceAll("\\", "/").replace(/^(?:\.\/)+/, ""), line: Number(line) || null };
}

/** Return a path within a repository, encoded, or null: nothing may lead out of it. */
function encoded(path) {
	const parts = path.split("/");
	const leaves = /^[a-z][a-z\d+.-]*:/i.test(path) || parts.some((part) => ["", ".", ".."].includes(part));
	return leaves || !path.isWellFormed() ? null : parts.map(encodeURIComponent).join("/");
}

/** Return what a run tells of its source. */
function known({ metadata }) {
	const address = webAddress(metadata.repository);
	const [, file, page] = HOSTS.find(([name]) => name.test(address?.hostname));
	const repository = address && (address.origin + address.pathname).replace(/(?:\.git)?\/*$/, "");
	return { repository, commit: /^[\da-z]{4,64}$/i.exec(metadata.commit ?? "")?.[0], file: `{repository}${file}`, page: `{repository}${page}` };
}

/** Return a pattern filled with values, null where one is missing or it is no web address. */
function filled(pattern, values) {
	const parts = pattern.split(/\{(\w+)\}/).map((part, index) => (index % 2 ? values[part] : part));
	return parts.includes(null) || parts.includes(undefined) ? null : (webAddress(parts.join(""))?.href ?? null);
}

/** Return where a task's line can be read, or null. `run` is the one that last reported it. */
export function sourceLink(task, run) {
	const { path, line } = placeOf(task.location);
	if (!line && task.extensions?.file !== path) return null; // what has no line may be no file
	const { file, repository, commit } = known(run);
	return filled(String(run.metadata.sourceUrl ?? file), { repository, commit, path: encoded(path), line: line ?? 1 });
}

/** Return a run's commit, if any, and where it can be read. */
export function commitOf(run) {
	const { page, repository, commit } = known(run);
	return commit && { name: commit.slice(0, 10), href: filled(page, { repository, commit }) };
}
