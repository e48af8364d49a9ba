// Where the source that a finding is about can be read: in its repository, at the commit that was scanned.

import { webAddress } from "./words.js";

const LAYOUTS = [ // by what a host is called: how it shows files and commits
	[/gitlab/, "/-/blob/{commit}/{path}#L{line}", "/-/commit/{commit}"],
	[/bitbucket/, "/src/{commit}/{path}#lines-{line}", "/commits/{commit}"],
	[/codeberg|gitea|forgejo/, "/src/commit/{commit}/{path}#L{line}", "/commit/{commit}"],
	[/github/, "/blob/{commit}/{path}#L{line}", "/commit/{commit}"],
];
const [, ...USUAL] = LAYOUTS.at(-1);

/** Return the path and line of a text like `./src/app.py:12:5`. */
export function placeOf(text) {
	const [, path, line] = /^(.*?)(?::(\d{1,9})(?::\d{1,9})?)?$/.exec(text ?? "") ?? [];
	return { path: (path ?? "").replaceAll("\\", "/").replace(/^(?:\.\/)+/, ""), line: Number(line) || null };
}

/** Return a path within a repository for a URL, null where it is none: nothing there leads out of it. */
function encoded(path) {
	const parts = path.split("/");
	const leaves = /^[a-z][a-z\d+.-]*:/i.test(path) || parts.some((part) => ["", ".", ".."].includes(part));
	return leaves || !path.isWellFormed() ? null : parts.map(encodeURIComponent).join("/");
}

const hostOf = (address) => address?.hostname.toLowerCase() ?? "";
const isForge = (address) => LAYOUTS.some(([host]) => host.test(hostOf(address))) && /^\/[^/]+\/[^/]/.test(address.pathname);

/** Return what a run's metadata tell of its source; a target at a forge that is known stands for the repository. */
function known({ metadata, targetUrl }) {
	const [named, target] = [metadata.repository ?? "", targetUrl ?? ""].map((url) => webAddress(String(url)));
	const address = named ?? (!metadata.repository && isForge(target) ? target : null);
	const isGitLab = String(metadata.pipeline).includes("/-/"); // whatever its host is called
	const layout = LAYOUTS.find(([host]) => host.test(isGitLab ? "gitlab" : hostOf(address)));
	const commit = /^[\da-z]{4,64}$/i.exec(metadata.commit ?? "")?.[0];
	const [files, commits] = layout?.slice(1) ?? USUAL;
	return { commit, files, commits, repository: address && (address.origin + address.pathname).replace(/(?:\.git)?\/*$/, "") };
}

/** Return a pattern with values in their places as an address, null where one is missing or it leads elsewhere than to the web. */
function filled(pattern, values) {
	const missing = [...pattern.matchAll(/\{(\w+)\}/g)].some(([, name]) => !values[name]);
	return missing ? null : (webAddress(pattern.replace(/\{(\w+)\}/g, (_, name) => values[name]))?.href ?? null);
}

/** Return where a task's line can be read, null where that is not known. `run` is the one that last reported it. */
export function sourceLink(task, run) {
	const { path, line } = placeOf(task.location);
	if (!line && task.extensions?.file !== path) return null; // what has no line may be no file
	const { files, ...values } = known(run);
	const pattern = typeof run.metadata.sourceUrl === "string" ? run.metadata.sourceUrl : `{repository}${files}`;
	return filled(pattern, { ...values, path: encoded(path), line: line ?? 1 });
}

/** Return the commit that a run was about and where it can be read, if it has one. */
export function commitOf(run) {
	const { commits, ...values } = known(run);
	return values.commit && { name: values.commit.slice(0, 10), href: filled(`{repository}${commits}`, values) };
}
