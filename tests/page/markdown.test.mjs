import assert from "node:assert/strict";
import { test } from "node:test";

import { markdownOf } from "../../findings_adapters/page/markdown.js";

const ADDRESS = "https://findings.example/#/findings/1";
const finding = (fields) => ({
	title: "Label", severity: "high", status: "open", reason: null, rule: null, location: null, description: null,
	evidence: [], remediation: [], successCriteria: [], ...fields,
});

test("a finding is written in full", () => {
	const task = finding({
		status: "dismissed", reason: "wont_fix", rule: "label", location: "a.py:3", description: "One\n<b>two</b> `<i>`",
		evidence: [{ type: "code", label: "a.py:2", url: null, content: "x = 1\n" }, { type: "screenshot", label: null, url: "https://example.com/a.png", content: null }],
		remediation: [{ step: 1, instruction: "https://example.com/label" }, { step: 2, instruction: "Add\none" }],
		successCriteria: [{ description: "It has one", automatable: true }],
	});
	assert.equal(markdownOf(task, ADDRESS, "https://code.example/a.py#L3"), `# Label

- Severity: High
- Status: Dismissed (Won't fix)
- Rule: \`label\` · <https://example.com/label>
- Location: \`a.py:3\` <https://code.example/a.py#L3>
- Finding: <${ADDRESS}>

## Description

> One
> \\<b>two\\</b> \`<i>\`

## Evidence

### code: a.py:2

\`\`\`py
x = 1
\`\`\`

### screenshot <https://example.com/a.png>

## Remediation

1. Add
   one

## Success criteria

- [ ] It has one (machine-checkable)
`);
});

test("a finding with little is short", () => {
	assert.equal(markdownOf(finding({}), ADDRESS, null), `# Label\n\n- Severity: High\n- Status: Open\n- Finding: <${ADDRESS}>\n`);
});

test("no text leaves its place", () => {
	const hostile = "```\n````\n# Obey\r\n- x\r# y\n> <details>\n~~~";
	const lines = markdownOf(finding({
		title: hostile, rule: "a ``` b", location: "`", description: hostile, remediation: [{ step: 1, instruction: hostile }],
		successCriteria: [{ description: hostile }], evidence: [{ type: hostile, label: hostile, content: hostile }],
	}), ADDRESS).split(/\r\n?|\n/);
	const fence = "`````";
	const [start, end] = [lines.indexOf(fence), lines.lastIndexOf(fence)];
	assert.deepEqual(lines.slice(start + 1, end), hostile.split(/\r\n?|\n/));
	const outside = [...lines.slice(0, start), ...lines.slice(end + 1)].filter((line) => !/^(?:> | {2}|1\. |- \[ \] |## (?:Description|Evidence|Remediation|Success criteria)$|$)/.test(line));
	assert.deepEqual(outside.map((line) => line.slice(0, 8)), ["# \\`\\`\\`", "- Severi", "- Status", "- Rule: ", "- Locati", "- Findin", "### \\`\\`"]);
});

/** Return the lines of a description as it is written. */
const described = (description) => markdownOf(finding({ description }), ADDRESS).split("## Description\n\n")[1].trimEnd().split("\n").map((line) => line.slice(2));

test("no tag or comment of a text is left outside code", () => {
	for (const text of [
		"x ```\n<!--\n``` y", "~~~\n```\n~~~\n<!--\n```", "```\n<!--", "a\n ```\n```\n<!--\n```\n<!--", "- ```\n<!--\n  ```", "``` x\n<!--", "a\u2028```\n<!--\n```",
		"a <b>", "\\<b>", "\\\\<b>", "\\`<b>`", "``<b>`", "[a](`) ` `<b>`", "[a](\n`) ` `<b>`", "a | b\n-|-\n`|` `<b>`", "https://a.example/` ` `<b>`",
	]) {
		const outside = described(text).join("\n").replace(/^(`{3,})\n[^]*?\n\1$/gm, "");
		assert.doesNotMatch(outside, /(?<!\\)(?:\\\\)*<|^[ -]*(?:```|~~~)/m, text);
	}
});

test("code is kept, between fences that it cannot close", () => {
	assert.deepEqual(described("~~~html\n```\n<b>@a\n~~~\n`<b>@a` ``<i>`</i>``"), ["", "````html", "```", "<b>@a", "````", "`<b>@a` ``<i>`</i>``"]);
	assert.deepEqual(described("`a\n`<b>`"), ["\\`a", "`<b>`"]);
	const tasks = finding({ successCriteria: [{ description: "```\n<b>\n```" }] });
	assert.match(markdownOf(tasks, ADDRESS), /- \[ \] \n {2}```\n {2}<b>\n {2}```\n$/);
});

test("no one is mentioned", () => {
	assert.match(markdownOf(finding({ title: "@ada, @", description: "Ask @ada" }), ADDRESS), /^# @\u200bada, @\n[^]*> Ask @\u200bada\n$/);
});
