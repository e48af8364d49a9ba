import assert from "node:assert/strict";
import { test } from "node:test";

import { tagName } from "../../findings_adapters/page/wcag.js";

test("criteria and levels of WCAG have names, other tags stay", () => {
	for (const [tag, name] of [
		["wcag143", "1.4.3 Contrast (Minimum) · AA"], ["wcag2411", "2.4.11 Focus Not Obscured (Minimum) · AA"],
		["wcag 1.3.1", "1.3.1 Info and Relationships · A"], ["1.4.3", "1.4.3 Contrast (Minimum) · AA"],
		["WCAG-3.3.9", "3.3.9 · AAA"], ["wcag111", "1.1.1 Non-text Content · A"],
		["wcag1412", "1.4.12 Text Spacing · AA"], ["wcag258", "2.5.8 Target Size (Minimum) · AA"], ["wcag413", "4.1.3 Status Messages · AA"],
		["wcag2aa", "WCAG 2.0 AA"], ["wcag21a", "WCAG 2.1 A"], ["wcag22aa", "WCAG 2.2 AA"],
		...["wcag", "wcag199", "wcag1414", "143", "1.4", "0.0.0", "1.4.3.1", "wcag2a11y", "constructor", ""].map((tag) => [tag, tag]),
	]) assert.equal(tagName(tag), name);
});

test("all 87 criteria are known", () => {
	const tags = [1, 2, 3, 4].flatMap((a) => [1, 2, 3, 4, 5].flatMap((b) => Array.from({ length: 20 }, (_, c) => `${a}.${b}.${c + 1}`)));
	const names = tags.map(tagName).filter((name, index) => name !== tags[index]);
	const levels = names.map((name) => name.split(" · ")[1]);
	assert.deepEqual(["A", "AA", "AAA"].map((level) => levels.filter((each) => each === level).length), [32, 24, 31]);
});
