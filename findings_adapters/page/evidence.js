// The evidence of a finding, which is untrusted: code, diffs, images and links.

import { html, useState } from "./lib.js";
import { Address, Copy, Dialog, Text } from "./parts.js";
import { diffKinds, foldedRange, isDiff, placeOf } from "./source.js";
import { cut, number, webAddress } from "./words.js";

const MOST_LETTERS = 4800;
const IMAGE_TYPE = /screen|image|picture|photo/i;
const IMAGE_FILE = /\.(?:png|jpe?g|gif|webp|avif|svg)$/i;

/** Show text with line numbers from `first` on; the line number `marked` is highlighted. A diff is colored instead. */
export function Code({ text, first = 1, marked = 0, label, diff }) {
	const [whole, setWhole] = useState(false);
	const lines = text.replace(/\n$/, "").split("\n");
	const mark = lines.length > 1 ? marked - first : -1;
	const [from, end] = whole ? [0, lines.length] : foldedRange(lines.length, mark);
	const tall = !whole && lines.slice(from, end).join("").length > MOST_LETTERS;
	const start = tall ? Math.max(from, mark) : from; // shows the marked line
	const some = end - start < lines.length && `${number(lines.length)} lines`;
	const kinds = diff ? diffKinds(lines) : [];
	kinds[mark] = "marked";
	return html`
		<div class="code ${diff ? "diff" : ""}" role="group" aria-label=${label} data-cut=${some && `${end - start} of ${some}`}>
			<pre class=${tall && "tall"}><code>${lines.map((line, at) => at >= start && at < end && html`<span class="line ${kinds[at] ?? ""}">
				<span class="no" aria-hidden="true" data-no=${first + at} />${at === mark && html`<span class="hidden">Here: </span>`}<bdi>${line}</bdi></span>`)}</code></pre>
			<div class="buttons">
				${(some || tall) && html`<button class="quiet" onClick=${() => setWhole(true)}>Show all ${some}</button>`}
				<${Copy} text=${text} />
			</div>
		</div>`;
}

/** Show an image, large on a click. That of another `host` is loaded on request only, because the host learns of it. */
function Picture({ url, host, name }) {
	const [state, setState] = useState(host ? "hidden" : "shown");
	const show = () => setState("shown");
	if (state === "hidden") return html`<button onClick=${show}>Load image from <bdi>${host}</bdi></button>`;
	if (state === "broken") return html`<p class="muted">Image couldn't be loaded.</p>`;
	return html`
		<button class="picture" title="Show large" onClick=${() => setState("large")}><img src=${url} alt=${name} onError=${() => setState("broken")} /></button>
		${state === "large" && html`
			<${Dialog} title=${cut(name, 90)} onClose=${show} wide>
				<img class="large" src=${url} alt="" />
				<div class="buttons end"><button onClick=${show}>Close</button></div>
			<//>`}`;
}

/** Show an item. The label of code may be like `src/app.py:12`: then the line of the finding is highlighted in it. */
export function Evidence({ item: { type, label, url, content }, location }) {
	const [begin, named] = [placeOf(label), placeOf(location)];
	const isData = /^data:/i.test(url);
	const address = webAddress(url);
	const isImage = isData || (address && (IMAGE_TYPE.test(type) || IMAGE_FILE.test(address.pathname)));
	return html`
		<li>
			<div><span class="kind"><${Text} of=${type} /></span> ${label && html`<strong><${Text} of=${label} /></strong>`}</div>
			${url && !isData && html`<p><${Address} url=${url} /></p>`}
			${isImage && html`<${Picture} url=${url} host=${address?.host} name=${label || "Image without a description"} />`}
			${content && html`<${Code} text=${content} first=${begin.line ?? 1} marked=${begin.line && begin.path === named.path ? named.line : 0} label=${label || type}
				diff=${isDiff(type, content)} />`}
		</li>`;
}
