import assert from "node:assert/strict";
import { test } from "node:test";

import { commitOf, diffKinds, documentsOf, foldedRange, isDiff, placeOf, sourceLink, stepsOf } from "../../findings_adapters/page/source.js";

const REPOSITORY = "https://code.example.com/acme/shop";
const runOf = (metadata) => ({ metadata: { repository: REPOSITORY, commit: "abc1234", ...metadata } });
const linkOf = (location, metadata, extensions = {}) => sourceLink({ location, extensions }, runOf(metadata));

test("a place is a path and a line", () => {
	assert.deepEqual(placeOf("./src/a.py:12:5"), { path: "src/a.py", line: 12 });
	assert.deepEqual(placeOf("src\\a.py:12"), { path: "src/a.py", line: 12 });
	assert.deepEqual(placeOf("src/a.py"), { path: "src/a.py", line: null });
	assert.deepEqual(placeOf(null), { path: "", line: null });
});

test("a line is linked as its host shows it", () => {
	assert.equal(linkOf("src/a b?#é.py:12:5"), `${REPOSITORY}/blob/abc1234/src/a%20b%3F%23%C3%A9.py#L12`);
	for (const [repository, link] of [
		["https://github.com/acme/shop.git", "https://github.com/acme/shop/blob/abc1234/a.py#L3"],
		["https://gitlab.example.com/a/b/c/", "https://gitlab.example.com/a/b/c/-/blob/abc1234/a.py#L3"],
		["https://bitbucket.org/acme/shop", "https://bitbucket.org/acme/shop/src/abc1234/a.py#lines-3"],
		["https://codeberg.org/acme/shop", "https://codeberg.org/acme/shop/src/commit/abc1234/a.py#L3"],
		["https://ada:secret@code.example.com/acme/shop?a#b", `${REPOSITORY}/blob/abc1234/a.py#L3`],
	]) assert.equal(linkOf("a.py:3", { repository }), link);
	for (const repository of ["", null, "ssh://example.com/shop", "javascript:alert(1)"]) assert.equal(linkOf("a.py:3", { repository }), null);
});

test("a pattern says it otherwise", () => {
	assert.equal(linkOf("d/a.py:3", { sourceUrl: "https://x.example/{path}?at={commit}#{line}" }), "https://x.example/d/a.py?at=abc1234#3");
	assert.equal(linkOf("d/a.py:3", { sourceUrl: "https://x.example/{path}", repository: null, commit: null }), "https://x.example/d/a.py");
	for (const sourceUrl of ["javascript:{path}", "https://x.example/{path}/{other}", "{path}", "data:text/html,{path}"]) {
		assert.equal(linkOf("d/a.py:3", { sourceUrl }), null);
	}
});

test("nothing leads out of the repository, and what is no file is not linked", () => {
	for (const location of [
		"../a.py:3", "a/../../b:3", "/etc/passwd:3", "C:/a.py:3", "https://example.com/x:3", "//example.com/x:3",
		"javascript:alert(1):3", "a//b:3", "..\\a:3", "", null, "pkg.mod.f", "\ud800:3",
	]) assert.equal(linkOf(location), null, location);
	assert.equal(linkOf("Dockerfile", {}, { file: "Dockerfile" }), `${REPOSITORY}/blob/abc1234/Dockerfile#L1`);
	for (const commit of ["..", "a/b", 5, null, {}, "abc?x"]) assert.equal(linkOf("a.py:3", { commit }), null);
});

test("a commit is linked where its repository is known", () => {
	assert.deepEqual(commitOf(runOf({ commit: "0123456789abcdef" })), { name: "0123456789", href: `${REPOSITORY}/commit/0123456789abcdef` });
	assert.equal(commitOf(runOf({ repository: null })).href, null);
	assert.equal(commitOf(runOf({ commit: "<b>" })), undefined);
});

test("a remediation that is only a URL is documentation", () => {
	const steps = ["https://example.com/rule\n", "See https://example.com/", "javascript:alert(1)"].map((instruction) => ({ instruction }));
	assert.deepEqual(documentsOf({ remediation: steps }), ["https://example.com/rule"]);
	assert.deepEqual(stepsOf({ remediation: steps }), steps.slice(1));
});

test("diffs are known by type or beginning, and their lines by sign", () => {
	for (const [type, content] of [["diff", "x"], ["Patch", null], ["log", "--- a\n+++ b\n"], ["code", "@@ -1 +1 @@"], [null, "diff --git a b"]]) assert.ok(isDiff(type, content));
	for (const content of ["-- a\n++ b", "--- a\nb", "- one\n+ two", "@@ x", null]) assert.ok(!isDiff("code", content));
	const lines = ["diff --git a b", "--- a", "+++ b", "@@ -1 +1 @@", "--- comment", " y", "+++ x", "diff --git c d", "--- c"];
	assert.deepEqual(diffKinds(lines), ["", "", "", "hunk", "removed", "", "added", "", ""]);
	const files = ["--- a", "+++ b", "@@ -1 +1 @@", "-x", "--- c", "+++ d", "@@ -1 +1 @@", "+y"];
	assert.deepEqual(diffKinds(files), ["", "", "hunk", "removed", "", "", "hunk", "added"]);
});

test("long code is folded around its marked line", () => {
	for (const [count, mark, range] of [
		[24, -1, [0, 24]], [3, 2, [0, 3]], [120, -1, [0, 24]], [120, 23, [0, 24]], [120, 24, [12, 36]], [120, 119, [96, 120]], [30, 29, [6, 30]],
	]) assert.deepEqual(foldedRange(count, mark), range);
});
