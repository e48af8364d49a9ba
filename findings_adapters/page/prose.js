// Texts of people and agents, each line in its own direction. Some Markdown is formatted; the rest is shown as typed.

import { html } from "./lib.js";
import { webAddress } from "./words.js";

const MOST_PIECES = 600; // of a text: more elements make the browser slow
const MARKS = new RegExp([
	/(?<=^|\n)```[^\n]*\n(?<block>[^]*?)\n```[^\n]*/, // each is bounded, so that no text takes quadratic time
	/`(?<code>[^`\n]{1,500})`/,
	/\*\*(?<strong>[^*\n]{1,500})\*\*/,
	/(?<=^|\n)#{1,6} (?<heading>[^\n]{1,500})/,
	/\[(?<words>[^\][\n]{1,500})\]\((?<target>https?:\/\/[^\s()<>"`\p{Cc}\p{Bidi_C}]{1,2000})\)/u,
	/\b(?<url>https?:\/\/[^\s<>"`\p{Cc}\p{Bidi_C}]+)/u,
].map(({ source }) => source).join("|"), "giu");
const TAGS = { block: "code", code: "code", strong: "strong", heading: "strong", link: "a" };

/** Return a URL without the punctuation that ends its sentence or closes an earlier bracket. */
function trimmed(url) {
	const ends = url.includes("(") ? ".,;:!?'*_|]}" : ".,;:!?'*_|]})";
	let end = url.length;
	while (ends.includes(url[end - 1])) end -= 1;
	return url.slice(0, end);
}

/** Split a text into strings and objects {kind, text, href?} with a kind of `TAGS`. */
export function piecesOf(text) {
	const pieces = [];
	let done = 0;
	for (const { 0: found, index, groups: { words, target, url, ...marked } } of text.matchAll(MARKS)) {
		if (pieces.length >= MOST_PIECES) break;
		const kind = Object.keys(marked).find((name) => marked[name] !== undefined);
		const shown = target ?? (url && trimmed(url));
		const address = webAddress(shown);
		if (!kind && !address) continue;
		pieces.push(text.slice(done, index), kind ? { kind, text: marked[kind] } : { kind: "link", text: words ? `${words} (${address.host})` : shown, href: address.href });
		done = index + (url ? shown : found).length;
	}
	return [...pieces, text.slice(done)].filter(Boolean);
}

const Marked = ({ kind, text, href }) => html`
	<${TAGS[kind]} class=${kind === "block" && kind} ...${href && { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }}><bdi>${text}</bdi><//>`;

/** Show untrusted text as a block; its direction does not change that of its surroundings. */
export const Prose = ({ of }) => html`
	<div class="prose" dir="auto">${piecesOf(of).map((piece) => (piece.kind ? html`<${Marked} ...${piece} />` : piece))}</div>`;
