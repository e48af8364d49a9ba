import assert from "node:assert/strict";
import { test } from "node:test";

import { piecesOf } from "../../findings_adapters/page/prose.js";

const marked = (text) => piecesOf(text).filter((piece) => piece.kind).map(({ kind, text: words, href }) => [kind, words, ...(href ? [href] : [])]);
const linksIn = (text) => piecesOf(text).flatMap((piece) => (piece.kind === "link" ? piece.href : []));

test("of Markdown, headings, strong words, code and links are told from text", () => {
	assert.deepEqual(marked("# Why\nUse `a_b`, **not** [this](https://example.com/x).\n```py\na = 1\nb\n```\n- *args and snake_case"), [
		["heading", "Why"], ["code", "a_b"], ["strong", "not"], ["link", "this (example.com)", "https://example.com/x"], ["block", "a = 1\nb"],
	]);
	const plain = "*args, snake_case, $5 … $6, a ` b, 2 ** 3, #1, [x], <b>bold</b>\n    if x:\n```open";
	assert.deepEqual(piecesOf(plain), [plain]);
});

test("URLs are linked without the sentence around them", () => {
	assert.deepEqual(linksIn("See https://example.com/a_(b)?c=1, or (http://example.com/d)."), ["https://example.com/a_(b)?c=1", "http://example.com/d"]);
	assert.deepEqual(linksIn("<https://example.com/a> https://example.com/b** [x](https://example.com/c)"), [
		"https://example.com/a", "https://example.com/b", "https://example.com/c",
	]);
});

test("nothing but the web is linked", () => {
	for (const text of [
		"[x](javascript:alert(1))", "[a]: javascript:alert(2)", "data:text/html,x", "//example.com", "ftp://example.com/",
		"xhttps://example.com/", "https://", "https://[", "http://\u202eexample.com", "![x](picture.png)",
	]) assert.deepEqual(piecesOf(text), [text]);
	assert.deepEqual(linksIn("https://example.com/a\u202eb\u2066"), ["https://example.com/a"]);
});

test("no text takes long, or is lost", () => {
	for (const unit of [
		"*", "[", "`", ">", "_", ".", "(", ")", "h", "http://", "https://a", "https://a.b/ ", "https://a.b/)", "http://a(.", "> ", "\n", "- a\n",
		"\u202e", "**a", "`a", "[a](", "[a](https://", "```a\n", "\n```", "# a\n", "# ", "**a** ", "`a` ",
	]) {
		const text = unit.repeat(65_536 / unit.length);
		const start = performance.now();
		const seen = piecesOf(text).map((piece) => piece.text ?? piece).join("");
		assert.ok(performance.now() - start < 1500, unit);
		const letters = (whole) => whole.replace(/[^a-z]/g, "").length;
		if (unit !== "```a\n") assert.equal(letters(seen), letters(text), unit); // but the names of languages
	}
});
