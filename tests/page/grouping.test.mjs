import assert from "node:assert/strict";
import { test } from "node:test";

import { filtersOf, isOf, nameGroups, narrowed } from "../../findings_adapters/page/grouping.js";

test("each group has filters, except findings without a target", () => {
	assert.deepEqual(filtersOf("rule", "S101"), { rule: "S101" });
	assert.deepEqual(filtersOf("rule", null), { without: "rule" });
	assert.deepEqual(filtersOf("assignee", null), { assigned: "false", assignee: "" });
	assert.deepEqual(filtersOf("assignee", "Ada"), { assignee: "Ada", assigned: "" });
	assert.equal(filtersOf("targetUrl", null), null);
});

test("filters that are set already also apply to a group", () => {
	assert.deepEqual(narrowed({ status: "open", rule: "A,B" }, "rule", "A"), { status: "open", rule: "A" });
	assert.deepEqual(narrowed({ tag: "x" }, "tag", "y"), { tag: "x" });
	assert.deepEqual(narrowed({ location: "a.py:1" }, "location", "a.py"), { location: "a.py:1" });
	assert.deepEqual(narrowed({ without: "rule" }, "tag", null), { without: "rule" });
	assert.deepEqual(narrowed({ status: "open" }, "targetUrl", null), { status: "open" });
});

test("a file contains its lines, but no files below its path", () => {
	const has = (file, location) => isOf("location", file, { location });
	for (const location of ["a.py", "a.py:1", "a.py:1:2"]) assert.ok(has("a.py", location), location);
	for (const location of ["a.py/b", "a.py:1:2:3", "a.pyc", "b/a.py", null]) assert.ok(!has("a.py", location), location);
	assert.ok(has("https://example.com:80", "https://example.com:80"));
	assert.ok(has(null, null));
});

test("a finding is in a group for each of its tags", () => {
	const task = { tags: ["a", "b"], assignee: "" };
	assert.ok(isOf("tag", "a", task) && isOf("tag", "b", task) && !isOf("tag", null, task));
	assert.ok(isOf("tag", null, { tags: [] }));
	assert.ok(isOf("assignee", null, task));
});

test("dialogs name the groups that they change", () => {
	assert.equal(nameGroups("rule", ["B101"], 12), "12 findings of rule B101");
	assert.equal(nameGroups("assignee", [null], 1), "1 finding without an assignee");
	assert.equal(nameGroups("location", [null], 2), "2 findings without a file");
	assert.equal(nameGroups("tag", ["a", null], 3), "3 findings in 2 groups by tag");
});
