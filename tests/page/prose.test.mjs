import assert from "node:assert/strict";
import { test } from "node:test";

import { piecesOf } from "../../findings_adapters/page/prose.js";

const linksIn = (text) => piecesOf(text).flatMap((piece) => piece.url ?? []);

test("URLs are linked without the sentence around them", () => {
	assert.deepEqual(linksIn("See https://example.com/a_(b)?c=1, or (http://example.com/d)."), ["https://example.com/a_(b)?c=1", "http://example.com/d"]);
	assert.deepEqual(linksIn("<https://example.com/a> **https://example.com/b** [x](https://example.com/c)"), [
		"https://example.com/a", "https://example.com/b", "https://example.com/c",
	]);
});

test("nothing but the web is linked", () => {
	for (const text of [
		"[x](javascript:alert(1))", "[a]: javascript:alert(2)", "data:text/html,x", "//example.com", "ftp://example.com/",
		"xhttps://example.com/", "https://", "https://[", "http://\u202eexample.com",
	]) assert.deepEqual(piecesOf(text), [text]);
	assert.deepEqual(linksIn("https://example.com/a\u202eb\u2066"), ["https://example.com/a"]);
});

test("no text is lost, and none takes long", () => {
	for (const unit of ["*", "[", "`", ">", "_", ".", "(", ")", "h", "http://", "https://a", "https://a.b/ ", "https://a.b/)", "http://a(.", "> ", "\n", "- a\n", "\u202e"]) {
		const text = unit.repeat(65_536 / unit.length);
		const start = performance.now();
		const whole = piecesOf(text).map((piece) => piece.url ?? piece).join("");
		assert.equal(whole, text);
		assert.ok(performance.now() - start < 200, unit);
	}
});
