// How the API (`docs/api.md`) is asked, and how it refuses.

export const API = new URL("../api/v1/", import.meta.url);
export const DESCRIPTION = new URL("openapi.json", API).href;
export const pathOf = (kind, id, more = "") => `${kind}/${encodeURIComponent(id)}${more}`;

/** What a refusal says, and in how many seconds to try again. */
export class Refusal extends Error {
	constructor(response, problem) {
		const errors = problem.errors ?? [];
		const told = errors.slice(0, 5).map((each) => `${each.parameter ?? each.pointer}: ${each.detail}`);
		super([problem.detail ?? (response.status ? `The service answered ${response.status}.` : "A proxy asks you to sign in: reload the page."), ...told].join("\n"));
		this.status = response.status;
		this.code = problem.code ?? "";
		this.errors = errors;
		this.retryAfter = Number(response.headers.get("Retry-After")) || 0;
	}
}

class Unreachable extends Error {}

const asUnreachable = (error) => {
	throw error.name === "AbortError" ? error : new Unreachable("The service can't be reached.");
};

/** Tell whether the same request may succeed later. */
export const isPassing = (error) => error instanceof Unreachable || error.status > 501;

/** Tell whether to sign in: the service says so, or a proxy in front leads to its own page. */
const asksToSignIn = (response) => response.status === 401 || response.type === "opaqueredirect"
	|| (response.ok && /html/.test(response.headers.get("Content-Type")));

/** Send a request, without empty values of `query`; the response may be a refusal. Without a key, a proxy puts it in. */
export function send(method, path, key, { query = {}, headers = {}, body, signal } = {}) {
	const url = new URL(path, API);
	for (const [name, value] of Object.entries(query)) if (String(value ?? "") !== "") url.searchParams.set(name, String(value));
	const sendable = key.replace(/[^ -~]/g, "?"); // with other signs it is no key, which the service says best
	const sent = { Accept: "application/json", ...(key && { Authorization: `Bearer ${sendable}` }), ...(body && { "Content-Type": "application/json" }), ...headers };
	const options = { method, headers: sent, body: body && JSON.stringify(body), signal, cache: "no-store", redirect: "manual" };
	return fetch(url, options).catch(asUnreachable);
}

/** Throw what a response refuses, if it does. */
export async function heedRefusal(response) {
	if (!response.ok && response.status !== 304) throw new Refusal(response, await response.json().catch(() => ({})));
}

/** Ask with the session's key, and again with another once that holds no more. */
export function createApi(session) {
	async function ask(method, path, options = {}) {
		for (;;) {
			const { key } = session.get();
			const response = await send(method, path, key, options);
			if (!asksToSignIn(response)) {
				await heedRefusal(response);
				return response;
			}
			await session.replaced(key);
			options.signal?.throwIfAborted();
		}
	}

	/** Return {data, etag}, or null while the ETag is still `known`. */
	async function request(method, path, { known, ...options } = {}) {
		if (known) options.headers = { ...options.headers, "If-None-Match": known };
		const response = await ask(method, path, options);
		if (response.status === 304) return null;
		const data = response.status === 204 ? null : await response.json().catch(asUnreachable);
		return { data, etag: response.headers.get("ETag") };
	}

	const get = async (path, query, signal) => (await request("GET", path, { query, signal })).data;

	return { ask, request, get };
}

/** Return where a list goes on, from its link, which a proxy may have made wrong. */
export const placeBehind = (list) => (list.next ? new URL(list.next, API).searchParams.get("after") : null);
