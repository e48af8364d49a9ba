// Requests to the API (`docs/api.md`) and its error responses.

export const API = new URL("../../api/v1/", import.meta.url);
export const DESCRIPTION = new URL("openapi.json", API).href;
export const pathOf = (kind, id, more = "") => `${kind}/${encodeURIComponent(id)}${more}`;

/** An error response: its messages, status and code, and the seconds until a retry. */
export class Refusal extends Error {
	constructor(response, problem) {
		const errors = problem.errors ?? [];
		const more = errors.slice(0, 5).map((each) => `${each.parameter ?? each.pointer}: ${each.detail}`).filter((text) => text !== problem.detail);
		super([problem.detail ?? (response.status ? `The service responded with status ${response.status}.` : "Your session at the proxy has ended. Reload the page to sign in."), ...more].join("\n"));
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

/** Return whether the same request may succeed later. */
export const isPassing = (error) => error instanceof Unreachable || error.status > 501;

/** Return whether the user has to sign in: for a 401, or if a proxy redirects or responds with its own page. */
const asksToSignIn = (response) => response.status === 401 || response.type === "opaqueredirect"
	|| (response.ok && /html/.test(response.headers.get("Content-Type")));

/** Send a request and return the response, also of an error. Empty values of `query` are left out; "" as key leaves it to a proxy. */
export function send(method, path, key, { query = {}, headers = {}, body, signal } = {}) {
	const url = new URL(path, API);
	for (const [name, value] of Object.entries(query)) if (String(value ?? "") !== "") url.searchParams.set(name, String(value));
	const sendable = key.replace(/[^ -~]/g, "?"); // fetch throws for other characters; the service rejects the key with a message
	const sent = { Accept: "application/json", ...(key && { Authorization: `Bearer ${sendable}` }), ...(body && { "Content-Type": "application/json" }), ...headers };
	const options = { method, headers: sent, body: body && JSON.stringify(body), signal, cache: "no-store", redirect: "manual" };
	return fetch(url, options).catch(asUnreachable);
}

/** Throw a `Refusal` for an error response. */
export async function heedRefusal(response) {
	if (!response.ok && response.status !== 304) throw new Refusal(response, await response.json().catch(() => ({})));
}

/** Create the functions that send requests with the session's key. After a 401 they wait for a new key and retry. */
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

	/** Return {data, etag}, or null if the ETag is still `known`. */
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

/** Return the cursor in a list's `next` link, whose other parts may be wrong behind a proxy. */
export const nextCursor = (list) => (list.next ? new URL(list.next, API).searchParams.get("after") : null);
