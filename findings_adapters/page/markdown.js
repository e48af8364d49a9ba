// A finding as Markdown, for an issue or for the prompt of an agent. Untrusted text can't leave its place in it.

import { documentsOf, isDiff, placeOf, stepsOf } from "./source.js";
import { capital, REASONS, STATUS_NAMES, webAddress } from "./words.js";

const UNMENTIONED = "@\u200b";
const inline = (text) => text.replace(/\s+/g, " ").replace(/[\\`*_[\]<>#|~&!]/g, "\\$&").replace(/@(?=\w)/g, UNMENTIONED);
const bracketed = (url) => (url ? ` <${url}>` : "");
const section = (name, parts) => parts.length && `## ${name}\n\n${parts.join("\n\n")}`;

/** Return more backticks than a text has in a row, but at least `least`. */
const fenceOf = (text, least) => "`".repeat(Math.max(least, ...(text.match(/`+/g) ?? []).map((run) => run.length + 1)));

function code(text) {
	const fence = fenceOf(text, 1);
	const gap = fence.length > 1 ? " " : ""; // keeps a backtick at an end apart from the fence
	return fence + gap + text + gap + fence;
}

const RISKS = /(?<=^|\n)(`{3,}|~{3,})([^`\n]*)\n(?:([^]*?)\n)?\1[ \t]*(?=\n|$)|`{3,}|~{3,}|\\*<(?=[a-z/!?])|@(?=\w)/gi;
const CODE_TOO = new RegExp(`${RISKS.source}|(\`+)(?!\`).*?(?<!\`)\\4(?!\`)|\`+`, "gi");

const fenced = (text, language) => [fenceOf(text, 3) + language, text, fenceOf(text, 3)].join("\n");

/** Begin each line with `mark`. Escape tags, mentions and fences; also in inline code if a table, link or formula may split it. */
function block(text, first, mark = " ".repeat(first.length)) {
	const safe = text.trim().replace(/\r\n?/g, "\n").replace(/[|[\\$]|\/\/|www\./i.test(text) ? RISKS : CODE_TOO, (found, fence, language, content = "") => {
		if (fence) return fenced(content, language.trim());
		if (found.endsWith("<")) return found.length % 2 ? `\\${found}` : found;
		return found === "@" ? UNMENTIONED : /[^`~]/.test(found) ? found : found.replace(/./g, "\\$&");
	});
	return (first + (safe.startsWith("```") ? "\n" : "") + safe).replaceAll("\n", `\n${mark}`);
}

function evidence({ type, label, url, content }) {
	const head = `### ${[type, label].filter(Boolean).map(inline).join(": ")}${bracketed(webAddress(url)?.href)}`;
	if (!content) return head;
	const language = isDiff(type, content) ? "diff" : (/\.(\w{1,10})$/.exec(placeOf(label).path)?.[1] ?? "");
	return `${head}\n\n${fenced(content.replace(/\n$/, ""), language)}`;
}

/** Return a finding as Markdown. `address` is the URL of the finding, `source` that of its line, if known. */
export function markdownOf(task, address, source) {
	const { reason, rule, location, description } = task;
	const rules = [...(rule ? [code(rule)] : []), ...documentsOf(task).map((href) => `<${href}>`)];
	const facts = [
		`- Severity: ${capital(task.severity)}`,
		`- Status: ${STATUS_NAMES[task.status]}${reason ? ` (${REASONS[reason] ?? inline(reason)})` : ""}`,
		rules.length && `- Rule: ${rules.join(" · ")}`,
		location && `- Location: ${code(location)}${bracketed(source)}`,
		`- Finding:${bracketed(address)}`,
	];
	return `${[
		`# ${inline(task.title)}`,
		facts.filter(Boolean).join("\n"),
		section("Description", description ? [block(description, "> ", "> ")] : []),
		section("Evidence", task.evidence.map(evidence)),
		section("Remediation", stepsOf(task).map(({ instruction }, index) => block(instruction, `${index + 1}. `))),
		section("Success criteria", task.successCriteria.map((each) => block(each.description, "- [ ] ", "  ") + (each.automatable ? " (machine-checkable)" : ""))),
	].filter(Boolean).join("\n\n")}\n`;
}
