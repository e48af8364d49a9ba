import assert from "node:assert/strict";
import { beforeEach, mock, test } from "node:test";

import { Refusal } from "../../findings_adapters/page/api.js";
import { createChanges, UNDO_TIME } from "../../findings_adapters/page/changes.js";

const stored = new Map();
globalThis.sessionStorage = { getItem: (name) => stored.get(name) ?? null, setItem: (name, text) => stored.set(name, text) };
globalThis.addEventListener = () => {};

const refusal = (status, problem) => new Refusal({ status, headers: new Headers() }, problem);

/** A service with `count` findings that records requests. */
function makeService(count) {
	const tasks = new Map(Array.from({ length: count }, (_, n) => [`t${n}`, { id: `t${n}`, etag: `"${n}.0"`, status: "open", title: `T${n}`, severity: "low" }]));
	const sent = [];
	const answers = new Map(); // by Idempotency-Key
	let turn = 0;
	const change = (id, fields) => tasks.set(id, { ...tasks.get(id), ...fields, etag: `"${id}.${(turn += 1)}"` });
	return {
		tasks, sent, change, loses: 0,
		async get(path) {
			const task = tasks.get(path.split("/")[1]);
			if (!task) throw refusal(404, { code: "not_found" });
			return { ...task };
		},
		async request(method, path, { body: { ids, ifMatch, ...fields } = {}, headers } = {}) {
			if (method === "DELETE") {
				const id = path.split("/")[1];
				sent.push({ deleted: id });
				if (this.loses-- > 0) throw refusal(503, {});
				if (!tasks.get(id)?.proposal) throw refusal(404, { code: "not_found" });
				return change(id, { proposal: null });
			}
			const key = headers["Idempotency-Key"];
			sent.push({ ids, fields, key });
			const gone = ids.flatMap((id, index) => (tasks.has(id) ? [] : { pointer: `/ids/${index}` }));
			if (!answers.has(key) && gone.length) throw refusal(422, { code: "validation_failed", errors: gone });
			const unfit = ids.filter((id) => tasks.get(id)?.etag !== ifMatch[id]);
			if (!answers.has(key) && unfit.length) {
				throw refusal(412, { code: "changed_meanwhile", errors: unfit.slice(0, 100).map((id) => ({ pointer: `/ifMatch/${id}` })) });
			}
			if (!answers.has(key)) {
				for (const id of ids) change(id, fields);
				answers.set(key, { tasks: ids.map((id) => ({ id, etag: tasks.get(id).etag })) });
			}
			if (this.loses-- > 0) throw refusal(503, {});
			return { data: answers.get(key) };
		},
		shown: () => [...tasks.values()].map((task) => ({ ...task })),
	};
}

const dismissal = (tasks) => ({ tasks, fields: { status: "dismissed", reason: "wont_fix" }, verb: "Dismiss", what: "Dismissed " });
const said = ({ toast }) => [toast.get().text, toast.get().undo];
const statuses = ({ tasks }) => [...new Set([...tasks.values()].map(({ status }) => status))];

beforeEach(() => stored.clear());

test("many findings are changed in batches of 1,000 and undone at once", async () => {
	const service = makeService(2300);
	const changes = createChanges(service);
	await changes.carryOut(dismissal(service.shown()));
	assert.deepEqual(service.sent.map(({ ids }) => ids.length), [1000, 1000, 300]);
	assert.deepEqual(said(changes), ["Dismissed 2,300 findings.", true]);
	await changes.undo();
	assert.deepEqual(statuses(service), ["open"]);
	await changes.undo();
	assert.equal(changes.toast.get().text, "Nothing to undo.");
});

test("findings that runs only reported again are changed, however many", async () => {
	const service = makeService(250);
	const shown = service.shown();
	for (const { id } of shown) service.change(id, {});
	await createChanges(service).carryOut(dismissal(shown));
	assert.deepEqual(statuses(service), ["dismissed"]);
});

test("a conflict with one of many findings changes none of them", async () => {
	const service = makeService(25);
	const shown = service.shown();
	service.change("t3", { status: "in_progress" });
	service.change("t4", { status: "dismissed", reason: "wont_fix" }); // alike
	const changes = createChanges(service);
	await changes.carryOut(dismissal(shown));
	const [{ change, others }] = changes.conflicts.get();
	assert.deepEqual([others.map(({ id }) => id), change.tasks.length], [["t3"], 24]);
	assert.equal(service.tasks.get("t5").status, "open");
	await changes.carryOut({ ...change, tasks: change.tasks.filter(({ id }) => id !== "t3") });
	assert.equal(changes.toast.get().text, "Dismissed 23 findings.");
	assert.equal(service.tasks.get("t3").status, "in_progress");
});

test("hundreds of conflicts are reported at once", async () => {
	const service = makeService(400);
	const shown = service.shown();
	for (let n = 0; n < 250; n += 1) service.change(`t${n}`, { assignee: "Ada" });
	const changes = createChanges(service);
	await changes.carryOut(dismissal(shown));
	assert.deepEqual(changes.conflicts.get().map(({ change, others }) => [change.tasks.length, others.length]), [[400, 250]]);
	assert.deepEqual(statuses(service), ["open"]);
});

test("a decision that someone else made first leaves nothing to undo", async () => {
	const service = makeService(2);
	const [first, second] = service.shown();
	const changes = createChanges(service);
	await changes.carryOut(dismissal([first]));
	service.change(second.id, { status: "dismissed", reason: "wont_fix" });
	await changes.carryOut(dismissal([second]));
	assert.deepEqual(said(changes), ["Nothing changed.", false]);
	assert.deepEqual(changes.changed.get(), [second.id]);
});

test("a finding deleted by others stops neither a decision nor its undo", async () => {
	const service = makeService(5);
	const shown = service.shown();
	service.tasks.delete("t2");
	const changes = createChanges(service);
	await changes.carryOut(dismissal(shown));
	assert.equal(changes.toast.get().text, "Dismissed 4 findings.");
	service.tasks.delete("t3");
	await changes.undo();
	assert.deepEqual([service.tasks.size, statuses(service)], [3, ["open"]]);
});

test("undo reverts the saved part of a change and drops its unsent part", async () => {
	const service = makeService(1500);
	const changes = createChanges(service);
	const { request } = service;
	service.request = function (...asked) {
		if (this.sent.length === 1) throw refusal(503, {});
		return request.apply(this, asked);
	};
	await changes.carryOut(dismissal(service.shown()));
	assert.deepEqual([changes.unsent.get()[0].tasks.length, statuses(service)], [500, ["dismissed", "open"]]);
	service.request = request;
	await changes.undo();
	assert.deepEqual([changes.unsent.get(), statuses(service)], [[], ["open"]]);
});

test("one undo reverts the parts before and after a conflict", async () => {
	const service = makeService(1200);
	const shown = service.shown();
	service.change("t1100", { assignee: "Ada" });
	const changes = createChanges(service);
	await changes.carryOut(dismissal(shown));
	const [{ change }] = changes.conflicts.get();
	assert.equal(change.tasks.length, 200);
	await changes.carryOut({ ...change, tasks: change.tasks.filter(({ id }) => id !== "t1100") });
	assert.deepEqual(statuses(service), ["dismissed", "open"]);
	await changes.undo();
	assert.deepEqual(statuses(service), ["open"]);
});

test("a change whose response was lost is applied once, also after a reload", async () => {
	const service = makeService(3);
	service.loses = 1;
	const changes = createChanges(service);
	await changes.carryOut({ tasks: service.shown(), fields: { comment: "Once" }, verb: "Comment on", what: "Commented on " });
	assert.equal(changes.unsent.get().length, 1);
	const later = createChanges(service);
	await later.sendUnsent();
	assert.deepEqual(later.unsent.get(), []);
	assert.equal(new Set(service.sent.map(({ key }) => key)).size, 1);
});

for (const seenAgain of [false, true]) {
	test(`a second decision follows the first before the view reloads${seenAgain ? ", after another report" : ""}`, async () => {
		const service = makeService(1);
		const shown = service.shown();
		const changes = createChanges(service);
		if (seenAgain) service.change("t0", {});
		changes.carryOut(dismissal(shown));
		await changes.carryOut({ tasks: shown, fields: { status: "open" }, verb: "Reopen", what: "Reopened " });
		assert.deepEqual([changes.conflicts.get(), statuses(service)], [[], ["open"]]);
	});
}

test("cancel stops after the batch in flight, and undo reverts the sent batches", async () => {
	const service = makeService(2500);
	const changes = createChanges(service);
	changes.toast.follow(({ cancel }) => service.sent.length === 1 && cancel?.());
	await changes.carryOut(dismissal(service.shown()));
	assert.deepEqual(service.sent.map(({ ids }) => ids.length), [1000, 1000]);
	assert.deepEqual(said(changes), ["Dismissed 2,000 of 2,500 findings. Cancelled.", true]);
	await changes.undo();
	assert.deepEqual(statuses(service), ["open"]);
});

test("a failed retry leaves no button that cancels it", async () => {
	const service = makeService(1400);
	const changes = createChanges(service);
	service.loses = 2;
	await changes.carryOut(dismissal(service.shown()));
	await changes.sendUnsent();
	assert.equal(changes.unsent.get().length, 1);
	assert.deepEqual([changes.toast.get().text, !changes.toast.get().cancel], ["", true]);
	await changes.sendUnsent();
	assert.deepEqual(said(changes), ["Dismissed 1,400 findings.", true]);
});

test("a decision that changes nothing is not sent, and leaves nothing to undo", async () => {
	const service = makeService(2);
	const changes = createChanges(service);
	await changes.carryOut({ tasks: service.shown(), fields: { status: "open" }, verb: "Reopen", what: "Reopened " });
	assert.deepEqual([said(changes), service.sent], [["Nothing changed.", false], []]);
	await changes.undo();
	assert.equal(changes.toast.get().text, "Nothing to undo.");
});

test("findings are pending until their change is saved, also while it is unsent", async () => {
	const service = makeService(3);
	const changes = createChanges(service);
	const [first, second] = service.shown();
	service.loses = 1;
	const sent = [changes.carryOut(dismissal([first])), changes.carryOut(dismissal([second]))];
	assert.deepEqual([...changes.pending.get()], ["t0", "t1"]);
	await Promise.all(sent);
	assert.deepEqual([...changes.pending.get()], ["t0", "t1"]);
	await changes.sendUnsent();
	assert.deepEqual([...changes.pending.get()], []);
});

const rejection = (tasks) => ({ tasks, rejects: true, fields: {}, verb: "Reject", what: "Rejected the proposal for " });
const settle = () => new Promise((resolve) => setImmediate(resolve));

test("a held decision is sent when its time is over, and undo then reverts all its parts", async () => {
	mock.timers.enable({ apis: ["setTimeout"] });
	const service = makeService(3);
	const changes = createChanges(service);
	const [one, ...others] = service.shown();
	changes.hold([dismissal([one]), dismissal(others)], "Accepted 3 proposals.");
	assert.deepEqual([said(changes), [...changes.pending.get()].length, service.sent], [["Accepted 3 proposals.", true], 3, []]);
	mock.timers.tick(UNDO_TIME - 1);
	assert.deepEqual(service.sent, []);
	changes.say("Another text");
	mock.timers.tick(1);
	mock.timers.reset();
	for (let turn = 0; turn < 9; turn += 1) await settle();
	assert.deepEqual([statuses(service), service.sent.length, changes.pending.get().size], [["dismissed"], 2, 0]);
	assert.deepEqual([changes.toast.get().text, changes.changed.get()], ["Another text", ["t0", "t1", "t2"]]);
	await changes.undo();
	assert.deepEqual(statuses(service), ["open"]);
	await changes.undo();
	assert.equal(changes.toast.get().text, "Nothing to undo.");
});

test("undo drops held decisions before it reverts others, the last one first", async () => {
	const service = makeService(3);
	const changes = createChanges(service);
	const [first, second, third] = service.shown();
	await changes.carryOut(dismissal([first]));
	changes.hold([dismissal([second])], "");
	changes.hold([rejection([third])], "");
	for (const pending of [["t1"], [], []]) {
		await changes.undo();
		assert.deepEqual([changes.toast.get().text, [...changes.pending.get()]], ["Undone.", pending]);
	}
	assert.deepEqual([statuses(service), service.sent.length], [["open"], 2]);
});

test("another change is sent after the held decisions before it", async () => {
	const service = makeService(2);
	const changes = createChanges(service);
	const [first, second] = service.shown();
	changes.hold([dismissal([first])], "");
	await changes.carryOut({ tasks: [first, second], fields: { status: "in_progress" }, verb: "Start", what: "Started " });
	assert.deepEqual(service.sent.map(({ fields }) => fields.status), ["dismissed", "in_progress"]);
	assert.deepEqual(statuses(service), ["in_progress"]);
});

test("proposals are rejected one by one, and those left when the service can't be reached are sent later", async () => {
	const service = makeService(4);
	for (const id of ["t0", "t2", "t3"]) service.change(id, { proposal: {} });
	const changes = createChanges(service);
	changes.hold([rejection(service.shown())], "");
	const { request } = service;
	service.request = function (...asked) {
		if (this.sent.length === 2) this.loses = 1;
		return request.apply(this, asked);
	};
	await changes.carryOut({ tasks: [], fields: {} });
	assert.deepEqual(changes.unsent.get()[0].tasks.map(({ id }) => id), ["t2", "t3"]);
	await createChanges(service).sendUnsent(); // after a reload
	assert.deepEqual([...service.tasks.values()].map(({ proposal }) => proposal ?? null), [null, null, null, null]);
	assert.deepEqual(service.sent.map(({ deleted }) => deleted).filter(Boolean), ["t0", "t1", "t2", "t2", "t3"]);
});

test("a held decision that someone else's change forestalls is shown as a conflict", async () => {
	const service = makeService(2);
	const shown = service.shown();
	const changes = createChanges(service);
	changes.hold([dismissal([shown[0]])], "");
	service.change("t0", { status: "in_progress" });
	await changes.carryOut(dismissal([shown[1]]));
	const [{ change }] = changes.conflicts.get();
	assert.deepEqual([change.tasks.map(({ id }) => id), service.tasks.get("t0").status], [["t0"], "in_progress"]);
	await changes.carryOut({ ...change, tasks: [{ ...service.tasks.get("t0") }] });
	assert.deepEqual(said(changes), ["Dismissed “T0”.", true]);
});
